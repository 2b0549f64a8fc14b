#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "launcher/forecast/search.h"
#include "tests/unit/forecast/fit.h"

using namespace shardrun;
using tests::Row;

namespace {

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows =
      tests::read_rows(SOURCE_DIR "/tests/unit/forecast/calibration_rows.toml");
  return kRows;
}

double off(const Row& row, const launcher::Constants& constants) {
  return tests::predicted_rate(row, constants) / row.rate - 1.0;
}

}  // namespace

TEST_CASE("calibration: the constants that predictions use are those that the published rows give") {
  const auto fitted = tests::values(tests::fit(rows()));
  const auto used = tests::values(launcher::fitted_constants());

  REQUIRE_EQ(fitted.size(), used.size());
  for (size_t i = 0; i < used.size(); ++i) {
    INFO(tests::names()[i], ": fitted ", fitted[i], ", used ", used[i]);
    CHECK(std::abs(fitted[i] / used[i] - 1.0) < 0.01);
  }
}

// Two rows are further off than 12 %, and stay in every mean. foundry-70b-a100-64 ran 27 % slower than the same program's
// row on twice the accelerators, with the smallest micro-batch that still filled the memory; aws-titan-8b-32-fp8 gained
// 16 % from fp8 and compilation where the same program gained 38 % to 48 % elsewhere, on the same accelerators too.
TEST_CASE("calibration: each published row is predicted from the others within 5 % on average") {
  const std::vector<std::string> known = {"foundry-70b-a100-64", "aws-titan-8b-32-fp8"};
  double sum = 0.0;
  std::string table;
  std::vector<std::string> beyond;
  for (size_t r = 0; r < rows().size(); ++r) {
    const double error = off(rows()[r], tests::fit(rows(), r));
    sum += std::abs(error);
    table +=
        fmt::format("{:<24}{:>10.1f} tokens/s {:>+7.1f} %\n", rows()[r].id, rows()[r].rate, 100.0 * error);
    if (std::abs(error) > 0.12) beyond.push_back(rows()[r].id);
  }
  const double mean = sum / static_cast<double>(rows().size());
  MESSAGE("left out once each, and predicted:\n", table,
          fmt::format("mean {:.2f} % of {} rows", 100.0 * mean, rows().size()));

  CHECK_EQ(rows().size(), 48);
  CHECK(mean <= 0.05);
  CHECK(beyond == known);
}

namespace {

// What the planner is asked for a row: its machine, batch and checkpointing, and the freedom that smp's search had.
launcher::Question question_of(const Row& row) {
  launcher::Question question;
  question.machine = row.machine;
  question.model = row.model;
  question.traits = row.traits;
  question.constants = launcher::fitted_constants();
  question.nodes = row.layout.nodes;
  question.sequence_length = row.layout.sequence_length;
  question.global_batch = row.layout.nodes * row.machine.per_node / row.layout.tensor_parallel *
                          row.layout.micro_batch * row.layout.accumulation;
  question.checkpointing = row.layout.checkpointing;
  question.optimizer_offload = row.layout.optimizer_offload;
  question.shard_grad_op = false;
  question.fp8 = row.layout.fp8;
  return question;
}

bool same_choice(const launcher::Layout& a, const launcher::Layout& b) {
  return a.shard_degree == b.shard_degree && a.tensor_parallel == b.tensor_parallel &&
         a.activation_offload == b.activation_offload;
}

// The least time with the published degrees and offload; infinite when the estimate lets none of them fit.
double published_seconds(const launcher::Answer& answer, const Row& row) {
  double least = std::numeric_limits<double>::infinity();
  for (const launcher::Candidate& one : answer.candidates)
    if (one.fits && same_choice(one.layout, row.layout)) least = std::min(least, one.seconds);
  return least;
}

std::string choice_text(const launcher::Layout& layout) {
  return fmt::format("{} x tensor {}{}", layout.shard_degree, layout.tensor_parallel,
                     layout.activation_offload ? ", offload" : "");
}

}  // namespace

// smp's rows are the best of a search, as their source says; the others are what somebody ran.
TEST_CASE("calibration: degrees and offload that won a published search are chosen, or within 1 %") {
  std::string table;
  for (const Row& row : rows()) {
    const launcher::Answer answer = launcher::search(question_of(row));
    if (!answer.best) {
      table += fmt::format("{:<24} nothing fits by the estimate\n", row.id);
      continue;
    }
    const launcher::Layout& chosen = answer.best->layout;
    const double behind = published_seconds(answer, row) / answer.best->seconds - 1.0;
    table += fmt::format("{:<24} {}; published {}: {:+.1f} %\n", row.id, choice_text(chosen),
                         choice_text(row.layout), 100.0 * behind);
    if (!row.id.starts_with("smp-")) continue;
    INFO(row.id, ": published degrees are behind by ", 100.0 * behind, " %");
    CHECK(behind <= 0.01);
    CHECK_EQ(chosen.tensor_parallel, row.layout.tensor_parallel);
    CHECK_EQ(chosen.activation_offload, row.layout.activation_offload);
  }
  MESSAGE("chosen, published, and how far the published one is behind:\n", table);
}
