#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/forecast/search.h"
#include "tests/unit/forecast/fit.h"

using namespace shardrun;
using tests::Row;

namespace {

constexpr const char* kRowsPath = SOURCE_DIR "/tests/unit/forecast/calibration_rows.toml";

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = tests::read_rows(kRowsPath, kRowsPath);
  return kRows;
}

double off(const Row& row, const launcher::Constants& constants) {
  return tests::predicted_rate(row, constants) / row.rate - 1.0;
}

template <typename Left>
std::vector<Row> rows_without(const Left& left) {
  std::vector<Row> others;
  std::copy_if(rows().begin(), rows().end(), std::back_inserter(others),
               [&](const Row& row) { return !left(row); });
  return others;
}

// Errors of rows, one line each, as they are found.
struct Errors {
  std::string table;
  double sum = 0.0;
  size_t count = 0;
  std::vector<std::string> beyond;  // rows that are further off than 12 %

  void add(const Row& row, double error) {
    table += fmt::format("{:<24}{:>10.1f} tokens/s {:>+7.1f} %\n", row.id, row.rate, 100.0 * error);
    sum += std::abs(error);
    ++count;
    if (std::abs(error) > 0.12) beyond.push_back(row.id);
  }
  double mean() const { return sum / static_cast<double>(count); }
  std::string text() const { return table + fmt::format("mean {:.2f} % of {} rows", 100.0 * mean(), count); }
};

}  // namespace

TEST_CASE("calibration: the constants that predictions use are those that the published rows give") {
  const auto fitted = tests::values(tests::fit(rows()));
  const auto used = tests::values(launcher::fitted_constants());

  REQUIRE_EQ(fitted.size(), used.size());
  for (size_t i = 0; i < used.size(); ++i) {
    INFO(tests::names()[i], ": fitted ", fitted[i], ", used ", used[i]);
    CHECK(std::abs(fitted[i] / used[i] - 1.0) < 0.001);
  }
}

// One row is further off than 12 %, and stays in every mean; [contradicted] in its file says what is known of it.
TEST_CASE("calibration: each published row is predicted from the others within 5 % on average") {
  Errors errors;
  for (const Row& row : rows())
    errors.add(row, off(row, tests::fit(rows_without([&](const Row& one) { return one.id == row.id; }))));
  MESSAGE("left out once each, and predicted:\n", errors.text());

  CHECK_EQ(errors.count, 48);
  CHECK(errors.mean() <= 0.05);
  CHECK(errors.beyond == std::vector<std::string>{"foundry-70b-a100-64"});
}

// This is harder than one row at a time: nothing of the same machine, program and publisher is left to learn from.
TEST_CASE("calibration: each publication is predicted from the others within 6 % on average") {
  std::set<std::string> sources;
  for (const Row& row : rows()) sources.insert(row.source);
  Errors errors;
  for (const std::string& source : sources) {
    const launcher::Constants constants =
        tests::fit(rows_without([&](const Row& one) { return one.source == source; }));
    for (const Row& row : rows())
      if (row.source == source) errors.add(row, off(row, constants));
  }
  MESSAGE("left out a publication at a time, and predicted:\n", errors.text());

  CHECK_EQ(errors.count, 48);
  CHECK(errors.mean() <= 0.06);
}

namespace {

// Returns what the planner is asked for a row: its machine and batch.
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
  question.optimizer_offload = row.layout.optimizer_offload;
  question.shard_grad_op = false;
  question.fp8 = row.layout.fp8;
  return question;
}

bool same_choice(const launcher::Layout& a, const launcher::Layout& b) {
  return a.shard_degree == b.shard_degree && a.tensor_parallel == b.tensor_parallel &&
         a.activation_offload == b.activation_offload;
}

// What stays as it was published while degrees and offload are chosen.
enum class Kept { kRest, kCheckpointing, kNothing };

bool keeps(Kept kept, const launcher::Layout& a, const launcher::Layout& b) {
  if (kept == Kept::kNothing) return true;
  if (a.checkpointing != b.checkpointing || a.optimizer_offload != b.optimizer_offload) return false;
  return kept == Kept::kCheckpointing || a.micro_batch == b.micro_batch;
}

struct Pick {
  const launcher::Candidate *chosen = nullptr, *published = nullptr;  // null: nothing fits

  // Says by how much the published choice takes longer; infinite when the estimate does not let it fit.
  double behind() const {
    if (chosen == nullptr || published == nullptr) return std::numeric_limits<double>::infinity();
    return published->seconds / chosen->seconds - 1.0;
  }
};

bool faster(const launcher::Candidate& one, const launcher::Candidate* other) {
  return other == nullptr || one.seconds < other->seconds;
}

// Picks the fastest of what the stack offered, and the fastest with the published degrees and offload.
Pick pick(const launcher::Answer& answer, const Row& row, Kept kept) {
  Pick found;
  for (const launcher::Candidate& one : answer.candidates) {
    if (!one.fits || !row.offered.includes(one.layout, row.machine.per_node)) continue;
    if (!keeps(kept, one.layout, row.layout)) continue;
    if (faster(one, found.chosen)) found.chosen = &one;
    if (same_choice(one.layout, row.layout) && faster(one, found.published)) found.published = &one;
  }
  return found;
}

std::string choice_text(const launcher::Layout& layout) {
  return fmt::format("{} x tensor {}{}", layout.shard_degree, layout.tensor_parallel,
                     layout.activation_offload ? ", offload" : "");
}

std::string pick_text(const Pick& found) {
  return fmt::format("{}, {:+.1f} %",
                     found.chosen == nullptr ? "nothing fits" : choice_text(found.chosen->layout),
                     100.0 * found.behind());
}

}  // namespace

// smp's rows are the best of a search over micro-batches too, as their source says; the others are what somebody ran.
TEST_CASE(
    "calibration: of shard degree, tensor degree and offload the published ones are chosen, or within 1 %") {
  std::string table = fmt::format("{:<24}{:<26}{:<32}{:<32}{}\n", "", "published", "the rest as published",
                                  "micro-batch free", "all free");
  int free_within = 0;
  for (const Row& row : rows()) {
    const launcher::Answer answer = launcher::search(question_of(row));
    const Pick rest = pick(answer, row, Kept::kRest), micro = pick(answer, row, Kept::kCheckpointing),
               all = pick(answer, row, Kept::kNothing);
    table += fmt::format("{:<24}{:<26}{:<32}{:<32}{}\n", row.id, choice_text(row.layout), pick_text(rest),
                         pick_text(micro), pick_text(all));
    free_within += all.behind() <= 0.01;
    INFO(row.id, ": the published choice is behind by ", 100.0 * rest.behind(), " %");
    CHECK(rest.behind() <= 0.01);
    if (row.id.starts_with("smp-")) CHECK(micro.behind() <= 0.01);
  }
  MESSAGE("chosen, and how far the published choice is behind it:\n", table,
          fmt::format("with all free {} of {} within 1 %", free_within, rows().size()));
}

// Nothing is fitted on these rows. llm-foundry's were looked at while formulas were written, the others were not.
TEST_CASE("unseen: published runs that the fit does not know are predicted within 8 % on average") {
  const std::vector<Row> unseen =
      tests::read_rows(SOURCE_DIR "/tests/unit/forecast/unseen_rows.toml", kRowsPath);
  Errors apart, foundry;
  for (const Row& row : unseen)
    (row.source == "llm-foundry-rest" ? foundry : apart).add(row, off(row, launcher::fitted_constants()));
  MESSAGE("not seen before, and predicted:\n", apart.text());
  MESSAGE(fmt::format("the rest of llm-foundry's tables: mean {:.2f} % of {} rows; beyond 12 %: {}",
                      100.0 * foundry.mean(), foundry.count, fmt::join(foundry.beyond, ", ")));

  CHECK_EQ(apart.count + foundry.count, 236);
  CHECK(apart.mean() <= 0.08);
  CHECK(foundry.mean() <= 0.06);
}
