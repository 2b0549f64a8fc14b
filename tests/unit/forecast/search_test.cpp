#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>

#include "launcher/forecast/search.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

constexpr ModelShape k70B{.layers = 80, .hidden = 8192, .kv_width = 1024, .ffn = 28672, .vocab = 32000};

Question question_on(int64_t nodes, int64_t global_batch) {
  Question question;
  question.model = k70B;
  question.traits = traits(Stack::kSmp);
  question.constants = fitted_constants();
  question.nodes = nodes;
  question.global_batch = global_batch;
  question.heads = 8;
  return question;
}

int offloads(const Layout& layout) {
  return 2 * layout.activation_offload + layout.optimizer_offload;
}

}  // namespace

TEST_CASE("search: every combination on 10,000 nodes is answered within 2 s") {
  const std::clock_t start = std::clock();  // what else runs here does not count as the search's time
  const Answer answer = search(question_on(10000, 10000 * 8 * 8));
  const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;

  CHECK(answer.candidates.size() > 2000);
  REQUIRE(answer.best);
  CHECK(taken < 2.0);
}

TEST_CASE("search: every candidate is the whole batch, and the best one fits") {
  const Question question = question_on(64, 1024);
  const Answer answer = search(question);

  for (const Candidate& one : answer.candidates)
    REQUIRE_EQ(one.layout.micro_batch * one.layout.accumulation * 64 * 8, 1024 * one.layout.tensor_parallel);
  REQUIRE(answer.best);
  CHECK(answer.best->bytes <= question.machine.memory_bytes * kUsableMemory);
  for (const Candidate& one : answer.candidates)
    if (one.fits) CHECK(answer.best->seconds <= one.seconds * 1.0021);
}

TEST_CASE("search: a sequence longer than a rank's share of the batch needs a tensor degree") {
  Question question = question_on(32, 128);  // 256 accelerators
  question.sequence_length = 32768;

  const Answer answer = search(question);

  REQUIRE(answer.best);
  CHECK(answer.best->layout.tensor_parallel >= 2);
}

TEST_CASE(
    "search: a model that fits nowhere is no answer, and a batch that does not divide is no candidate") {
  Question small = question_on(1, 8);
  CHECK_FALSE(search(small).best);
  CHECK(search(question_on(3, 7)).candidates.empty());
}

TEST_CASE("search: of a rank's share of a batch the micro-batches are the divisors that a job can ask for") {
  CHECK_EQ(micro_batches(12), std::vector<int64_t>{1, 2, 3, 4, 6, 12});
  CHECK_EQ(micro_batches(int64_t{1} << 39).size(), 21);
  CHECK_EQ(micro_batches(int64_t{1} << 39).back(), 1 << 20);
}

TEST_CASE("search: without candidates it says what does not divide") {
  const Question divides = question_on(4, 32);
  Question layers = divides, ranks = divides, experts = divides, batch = divides, fp8 = divides;
  layers.given.pipeline = 3;
  layers.given.pipeline_chunks = 2;
  ranks.given.pipeline = 5;
  ranks.tensor_parallel = 8;
  experts.given.experts = experts.given.expert_parallel = 64;
  batch.tensor_parallel = 1;
  batch.global_batch = 20;
  fp8.fp8 = true;
  fp8.model.ffn = 28680;

  CHECK_EQ(search(divides).why_none, "");
  CHECK_EQ(search(layers).why_none, "80 layers do not divide over pipeline 3 x chunks 2");
  CHECK_EQ(search(ranks).why_none, "32 accelerators do not divide over tensor 8 x pipeline 5");
  CHECK_EQ(search(experts).why_none, "32 data-parallel ranks do not divide over expert_parallel 64");
  CHECK_EQ(search(batch).why_none,
           "a batch of 20 sequences does not divide over 32 data-parallel ranks (32 accelerators, tensor 1)");
  CHECK_EQ(search(fp8).why_none, "with tensor 1 a rank's matrices are no multiples of 16, as fp8 needs them");
}

TEST_CASE("search: what the choice was made against is told") {
  const Answer answer = search(question_on(32, 1024));

  REQUIRE(answer.best);
  bool tensor = false;
  for (const Reason& reason : answer.reasons)
    tensor = tensor || (reason.choice == "tensor degree 2" && reason.layout && reason.ratio > 1.0);
  CHECK(tensor);
}

// The page of smp's rows says so without a row: offload makes 13B fit on 16 nodes, and is the best choice only there.
TEST_CASE("search: 4 Mi tokens of a 13B model need activation offload on 16 nodes of p4d, and not on more") {
  for (const int64_t nodes : {16, 32, 64, 128}) {
    Question question = question_on(nodes, 1024);
    question.model = {.layers = 40, .hidden = 5120, .kv_width = 5120, .ffn = 13824, .vocab = 32000};
    question.checkpointing = spec::Checkpointing::kFull;
    question.optimizer_offload = question.shard_grad_op = false;

    const Answer answer = search(question);

    REQUIRE(answer.best);
    CHECK_EQ(answer.best->layout.activation_offload, nodes == 16);
    CHECK_EQ(answer.best->layout.tensor_parallel, 1);
  }
}

TEST_CASE("search: a choice that turns out too large is replaced by one that holds less") {
  const Question question = question_on(64, 1024);
  const Answer first = search(question);
  REQUIRE(first.best);

  const Answer second = without_best(first, 1e12);

  REQUIRE(second.best);
  CHECK_FALSE(second.best->layout == first.best->layout);
  CHECK(second.best->seconds >= first.best->seconds * 0.998);
  for (const Candidate& one : second.candidates) {
    const bool larger = one.layout.tensor_parallel == first.best->layout.tensor_parallel &&
                        one.layout.checkpointing == first.best->layout.checkpointing &&
                        offloads(one.layout) == offloads(first.best->layout) &&
                        one.layout.strategy == first.best->layout.strategy &&
                        one.layout.shard_degree <= first.best->layout.shard_degree &&
                        one.layout.micro_batch >= first.best->layout.micro_batch;
    if (larger) CHECK_FALSE(one.fits);
  }
}

TEST_CASE(
    "search: in fp8 no rank gets a part of a matrix, or of a micro-batch, that is not a multiple of 16") {
  Question question = question_on(1, 64);
  question.model = {.layers = 4, .hidden = 1024, .kv_width = 1024, .ffn = 2720, .vocab = 32000};
  question.sequence_length = 24;
  const auto most = [&](auto part) {
    int64_t most_of_all = 0;
    for (const Candidate& one : search(question).candidates)
      most_of_all = std::max(most_of_all, part(one.layout));
    return most_of_all;
  };
  const auto tensor = [](const Layout& layout) { return int64_t{layout.tensor_parallel}; };
  const auto odd = [](const Layout& layout) { return layout.micro_batch % 2; };
  CHECK_EQ(most(tensor), 8);
  CHECK_EQ(most(odd), 1);
  question.fp8 = true;
  CHECK_EQ(most(tensor), 2);  // 2720 = 2 * 85 * 16
  CHECK_EQ(most(odd), 0);
}
