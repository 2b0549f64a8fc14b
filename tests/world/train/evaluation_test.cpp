// Data sets that are evaluated by themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/prose.h"
#include "tests/support/token_files.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

constexpr int64_t kSteps = 40, kEvery = 2;

// Two sentences that are learned by heart: the validation loss falls while letters are learned, and rises after that.
train::SessionOptions learning_by_heart(const Folder& folder) {
  auto options = tiny_options(folder, 2);
  std::string text;
  for (int i = 0; i < 20; ++i) text += tests::prose(2, 1);
  options.training_files = {folder.file("two.txt", text)};
  options.schedule = {optim::Schedule::kConstant, 2e-2, 2e-2, 1, kSteps};
  return options;
}

// Returns a token file of prose, 2048 tokens and a block of 4096 bytes for each of the ten sequences that are validated with. Where
// `learned` is false, none of its tokens is.
std::string ten_blocks(const Folder& folder, const std::string& name, bool learned) {
  const std::string text = tests::prose(2000, 3);
  REQUIRE(text.size() > 10 * 2048);
  std::vector<int32_t> document;
  for (size_t at = 0; at < 10 * 2048 + 1; ++at)
    document.push_back(learned ? text[at] : ~static_cast<int32_t>(text[at]));
  return tests::token_file(folder, name, data::byte_tokenizer_facts(), {document});
}

void damage(const std::string& path, int64_t byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(byte);
  REQUIRE(file.write("damaged!", 8));
}

// Returns the step at which `patience` evaluations in a row were no better than the best before them, straight from a curve.
int64_t expected_end(const std::vector<double>& curve, int patience) {
  for (size_t at = static_cast<size_t>(patience); at < curve.size(); ++at) {
    const auto last = curve.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    const double before = *std::min_element(curve.begin(), last - patience);
    if (before <= *std::min_element(last - patience, last)) return static_cast<int64_t>(at + 1) * kEvery;
  }
  return 0;
}

}  // namespace

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

TEST_CASE("training: a run ends when its validation loss rises, and keeps the checkpoint of the lowest") {
  const Folder folder;
  const auto options = learning_by_heart(folder);
  RunOptions run{.loop = {.steps = kSteps, .validate_every_steps = kEvery}};
  const auto whole = run_world(2, options, run);
  require_success(whole);
  const std::vector<double>& curve = whole[0].validation_losses;
  const int64_t end = expected_end(curve, 3);
  REQUIRE(end > 3 * kEvery);  // the curve falls before it rises
  REQUIRE(end + kEvery < kSteps);
  CHECK(!whole[0].best);
  const auto lowest = std::min_element(curve.begin(), curve.begin() + end / kEvery);
  const int64_t best = (lowest - curve.begin() + 1) * kEvery;

  run.loop.stop_after = 3;
  run.loop.keep_best = true;
  run.keep = 1;
  run.checkpoint_directory = folder.path() + "/once";
  const auto once = run_world(2, options, run);
  require_success(once);
  for (const RankRun& rank : once) {
    CHECK(rank.ended_early);
    CHECK(!rank.stopped);
    CHECK(static_cast<int64_t>(rank.losses.size()) == end);
    CHECK(rank.best == checkpoint::BestLoss{best, *lowest, end, 3, true});
  }
  const checkpoint::Store store(run.checkpoint_directory, 1);
  CHECK(store.best() == best);
  CHECK(*store.steps() == std::vector<int64_t>{end, best});
  CHECK(store.read_manifest(end)->best == once[0].best);

  const auto again = run_world(2, options, run);  // its count is full already
  require_success(again);
  CHECK(again[0].losses.empty());
  CHECK(again[0].ended_early);
  CHECK(again[0].best == once[0].best);

  // Stopped between two evaluations, stopped in the step of one, and resumed: the same end.
  for (const int64_t stop : {end - 3, end - 2, end}) {
    CAPTURE(stop);
    run.checkpoint_directory = folder.path() + "/stopped" + std::to_string(stop);
    run.stop_at_step = stop;
    const auto begun = run_world(2, options, run);
    require_success(begun);
    CHECK(begun[0].stopped);
    run.stop_at_step = -1;
    const auto resumed = run_world(2, options, run);
    require_success(resumed);
    CHECK(resumed[0].ended_early);
    CHECK(resumed[0].best == once[0].best);
    CHECK(static_cast<int64_t>(begun[0].losses.size() + resumed[0].losses.size()) == end);
    CHECK(checkpoint::Store(run.checkpoint_directory, 1).best() == best);
  }
}

TEST_CASE("training: a set from which nothing could be learned is refused before the first step") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  options.training_files = {ten_blocks(folder, "train.tokens", true)};
  options.validation_files = {ten_blocks(folder, "prompts.tokens", false)};
  for (const RankRun& rank : run_world(2, options, {.loop = {.steps = 4}})) {
    CHECK(rank.losses.empty());
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error ==
          "[data] validation: none of the 10 evaluated sequences has a token that is learned: prompts fill "
          "them; raise [data] validation_sequences or sequence_length, or give other files");
  }
  const std::string prompts = options.validation_files.front();
  options.evaluations = {{"prompts", {prompts}}};
  options.validation_files = {};
  for (const RankRun& rank : run_world(2, options, {.loop = {.steps = 4}})) {
    CHECK(rank.losses.empty());
    CHECK(rank.error.starts_with("[evaluation] prompts: none of the 10 "));
  }
  options.evaluations = {};
  options.training_files = {prompts};
  for (const RankRun& rank : run_world(2, options, {.loop = {.steps = 4}})) {
    CHECK(rank.losses.empty());
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error.starts_with(
        "[data] files: none of their 20481 tokens is learned: they are prompts alone; "));
  }
}

TEST_CASE("training: every rank says of a step of nothing but prompts that none of its tokens is learned") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  std::vector<int32_t> document(36 * 16 + 1, ~int32_t{65});  // an epoch of three steps
  document.back() = 66;
  options.training_files = {tests::token_file(folder, "t", data::byte_tokenizer_facts(), {document})};
  const auto ranks = run_world(2, options, {.loop = {.steps = 3}});
  require_success(ranks);
  for (const RankRun& rank : ranks) {
    CHECK(rank.steps_without_targets.size() == 2);
    for (const int64_t step : rank.steps_without_targets) CHECK(rank.losses[step - 1] == 0.0);
  }
}

TEST_CASE("training: what was trained is saved when the validation behind it finds its file damaged") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  const std::string whole = ten_blocks(folder, "whole.tokens", true),
                    damaged = ten_blocks(folder, "damaged.tokens", true);
  damage(damaged, 88 + 3 * 4096 + 10);  // in the fourth sequence, which the second rank reads
  options.training_files = {whole};
  options.validation_files = {damaged};
  RunOptions run{.loop = {.steps = 4}, .checkpoint_directory = folder.path() + "/checkpoints"};
  const auto ranks = run_world(2, options, run);
  for (const RankRun& rank : ranks) {
    CHECK(rank.losses.size() == 4);
    CHECK(rank.saved_steps == std::vector<int64_t>{4});
    CHECK(rank.error.ends_with("; the state before it is in " + run.checkpoint_directory + "/step_00000004"));
  }
  CHECK(ranks[1].error_code == base::Code::kCorrupt);
  CHECK(ranks[1].error.starts_with("validating: [data] validation: " + damaged));
  CHECK(ranks[0].error_code == base::Code::kPeerLost);

  options.validation_files = {whole};
  const auto resumed = run_world(2, options, run);
  require_success(resumed);
  CHECK(resumed[0].losses.empty());
  CHECK(resumed[0].validation_loss);
}
