// Data sets that are evaluated by themselves.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/prose.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

TEST_CASE("training: each evaluation set has the loss that it has as validation, on every mesh") {
  const Folder folder;
  auto options = tiny_options(folder, 1);
  const std::string other = folder.file("other.txt", tests::prose(30, 9));
  options.evaluations = {{"same", options.validation_files}, {"other", {other}}};
  const auto alone = run_world(1, options, {.loop = {.steps = 4}});
  require_success(alone);
  REQUIRE(alone[0].evaluation_losses.size() == 2);
  CHECK(alone[0].evaluation_losses[0] == alone[0].validation_loss);
  CHECK(alone[0].evaluation_losses[1] != alone[0].validation_loss);

  auto instead = tiny_options(folder, 1);
  instead.validation_files = {other};
  const auto validated = run_world(1, instead, {.loop = {.steps = 4}});
  CHECK(validated[0].validation_loss == alone[0].evaluation_losses[1]);

  auto sharded = tiny_options(folder, 2);
  sharded.evaluations = options.evaluations;
  const auto ranks = run_world(2, sharded, {.loop = {.steps = 4}});
  require_success(ranks);
  CHECK(largest_difference(ranks[0].evaluation_losses, alone[0].evaluation_losses) < 1e-5);
}
