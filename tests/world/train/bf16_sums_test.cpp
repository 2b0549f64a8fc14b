// Gradients that are summed in bf16 over ranks, against sums in fp32.
#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// How far losses of a few steps may be from those of fp32 sums.
constexpr double kBf16Sums = 1e-3;

// Counts the bytes of gradients that are given to sums.
class SumCounter : public ForwardingCommunicator {
 public:
  SumCounter(comm::Communicator& inner, std::atomic<int64_t>& bytes)
      : ForwardingCommunicator(inner), bytes_(bytes) {}

 private:
  base::Result<comm::Pending> begin(std::string_view what, size_t bytes, const Start& start) override {
    if (what == "reduce-scatter" || what == "all-reduce") bytes_ += static_cast<int64_t>(bytes);
    return start();
  }

  std::atomic<int64_t>& bytes_;
};

Decorate counting(std::atomic<int64_t>& bytes) {
  return [&bytes](Group group, comm::Communicator& inner) -> std::unique_ptr<comm::Communicator> {
    if (group != Group::kReduce && group != Group::kReplica) return nullptr;
    return std::make_unique<SumCounter>(inner, bytes);
  };
}

// What every rank loses in rounding to bf16, it loses here once more: numbers are cut off in the place of rounded.
class Truncating : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  base::Result<comm::Pending> reduce_scatter(std::span<const comm::Bf16> full,
                                             std::span<comm::Bf16> mine) override {
    cut_.assign(full.begin(), full.end());
    for (comm::Bf16& number : cut_) number.bits &= 0xffc0U;  // one of seven bits of the mantissa is left
    return inner_.reduce_scatter(std::span<const comm::Bf16>(cut_), mine);
  }

 private:
  std::vector<comm::Bf16> cut_;
};

}  // namespace

TEST_CASE(
    "training: gradients that are summed in bf16 follow the curve of fp32 in every strategy, with half the "
    "bytes and the same bits each time") {
  const Folder folder;
  struct Case {
    const char* name;
    int world_size, shard_degree;
    bool keeps_parameters;
    int64_t micro_batch;
  };
  for (const Case& one : {Case{"full_shard", 2, 2, false, 3}, Case{"full_shard, accumulated", 4, 4, false, 1},
                          Case{"no_shard", 2, 1, false, 3}, Case{"no_shard, accumulated", 4, 1, false, 1},
                          Case{"hybrid_shard", 4, 2, false, 3}, Case{"shard_grad_op", 4, 4, true, 3}}) {
    CAPTURE(std::string(one.name));
    auto options = tiny_options(folder, one.world_size, one.micro_batch);
    options.keeps_parameters = one.keeps_parameters;
    const RunOptions run{.loop = {.steps = 12}, .shard_degree = one.shard_degree};
    std::atomic<int64_t> wide{0}, narrow{0};
    const auto exact = run_world(one.world_size, options, run, counting(wide));
    require_success(exact);

    options.reduce = base::DType::kBf16;
    const auto ranks = run_world(one.world_size, options, run, counting(narrow));
    require_success(ranks);

    CHECK(wide > 0);
    CHECK(2 * narrow == wide);
    CHECK(ranks[0].losses != exact[0].losses);
    const double off = largest_difference(ranks[0].losses, exact[0].losses);
    MESSAGE(std::string(one.name) << ": losses are at most " << off << " from those of fp32 sums");
    CHECK(off < kBf16Sums);
    CHECK(*ranks[0].validation_loss == doctest::Approx(*exact[0].validation_loss).epsilon(kBf16Sums / 5));
    const auto again = run_world(one.world_size, options, run);
    for (const RankRun& rank : again) CHECK(rank.losses == ranks[0].losses);
  }
}

TEST_CASE("training: gradients that lose more than bf16's rounding do not pass for the right curve") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  const RunOptions run{.loop = {.steps = 12}};
  const auto exact = run_world(2, options, run);
  options.reduce = base::DType::kBf16;

  const auto cut = run_world(2, options, run, [](Group group, comm::Communicator& inner) {
    return group == Group::kReduce ? std::make_unique<Truncating>(inner) : nullptr;
  });

  require_success(cut);
  CHECK(largest_difference(cut[0].losses, exact[0].losses) > 2 * kBf16Sums);
}
