// Layers that are gathered and reduced together, against layers one by one.
#include <doctest/doctest.h>

#include <atomic>

#include <fmt/format.h>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

train::SessionOptions five_layers(const Folder& folder, int readers, int64_t micro_batch = 1) {
  auto options = tiny_options(folder, readers, micro_batch);
  config_of(options).layers = 5;
  return options;
}

// Counts what a rank asks of its shard group for gradients.
class Counted : public ForwardingCommunicator {
 public:
  Counted(comm::Communicator& inner, std::atomic<int>& count)
      : ForwardingCommunicator(inner), count_(count) {}
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    ++count_;
    return inner_.reduce_scatter(full, mine);
  }

 private:
  std::atomic<int>& count_;
};

// Brings the two halves of each rank's part of what is summed in the wrong order.
class Swapped : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    swapped_.assign(full.begin(), full.end());
    const size_t half = mine.size() / 2;
    for (size_t at = 0; at + mine.size() <= swapped_.size(); at += mine.size())
      for (size_t i = 0; i < half; ++i) std::swap(swapped_[at + i], swapped_[at + half + i]);
    return inner_.reduce_scatter(swapped_, mine);
  }

 private:
  std::vector<float> swapped_;
};

}  // namespace

TEST_CASE("wrap: layers that are taken together give the bits of layers one by one, in every strategy") {
  const Folder folder;
  struct Case {
    const char* name;
    int world_size, shard_degree;
    bool keeps_parameters = false;
    int prefetch = 1;
    int tensor_parallel = 1, pipeline_parallel = 1;
    int64_t micro_batch = 1;
    bool is_tied = false;
    kernels::DType compute = kernels::DType::kFp32, reduce = kernels::DType::kFp32;
  };
  using kernels::DType;
  for (const Case& one :
       {Case{"full_shard", 2, 2}, Case{"full_shard, nothing ahead", 3, 3, false, 0},
        Case{"full_shard, three ahead, one micro-step", 2, 2, false, 3, 1, 1, 6}, Case{"hybrid_shard", 4, 2},
        Case{"no_shard", 2, 1}, Case{"shard_grad_op", 4, 4, true}, Case{"tensor groups", 4, 2, false, 1, 2},
        Case{"stages", 4, 2, false, 1, 1, 2}, Case{"tied", 2, 2, false, 1, 1, 1, 1, true},
        Case{"bf16", 2, 2, false, 1, 1, 1, 1, false, DType::kBf16, DType::kBf16}}) {
    CAPTURE(one.name);
    auto options =
        five_layers(folder, one.world_size / one.tensor_parallel / one.pipeline_parallel, one.micro_batch);
    options.keeps_parameters = one.keeps_parameters;
    options.prefetch = one.prefetch;
    options.compute = one.compute;
    options.reduce = one.reduce;
    config_of(options).tied_embeddings = one.is_tied;
    const RunOptions run{.loop = {.steps = 6},
                         .shard_degree = one.shard_degree,
                         .tensor_parallel = one.tensor_parallel,
                         .pipeline_parallel = one.pipeline_parallel};
    const auto alone = run_world(one.world_size, options, run);
    require_success(alone);
    for (const int wrap : {2, 3, 64}) {
      CAPTURE(wrap);
      options.wrap = wrap;
      const auto together = run_world(one.world_size, options, run);
      require_success(together);
      CHECK(together[0].losses == alone[0].losses);
      CHECK(together[0].validation_loss == alone[0].validation_loss);
    }
  }
}

TEST_CASE("wrap: a unit is one collective, of which there are fewer") {
  const Folder folder;
  auto options = five_layers(folder, 2, 6);
  std::vector<int> counts;
  for (const int wrap : {1, 2, 5}) {
    options.wrap = wrap;
    std::atomic<int> count{0};
    require_success(
        run_world(2, options, {.loop = {.steps = 1}}, [&](Group group, comm::Communicator& inner) {
          return group == Group::kReduce ? std::make_unique<Counted>(inner, count) : nullptr;
        }));
    counts.push_back(count / 2);
  }
  CHECK(counts == std::vector<int>{7, 5, 3});  // embedding, units of layers, head
}

TEST_CASE("wrap: parts of a unit in the wrong order do not pass for the right ones") {
  const Folder folder;
  auto options = five_layers(folder, 2);
  const auto right = run_world(2, options, {.loop = {.steps = 6}});
  options.wrap = 2;

  const auto swapped =
      run_world(2, options, {.loop = {.steps = 6}}, [](Group group, comm::Communicator& inner) {
        return group == Group::kReduce ? std::make_unique<Swapped>(inner) : nullptr;
      });

  require_success(swapped);
  CHECK(largest_difference(swapped[0].losses, right[0].losses) > 1e-3);
}

TEST_CASE("wrap: a run goes on with layers taken together in any other way, bit for bit") {
  const Folder folder;
  auto options = five_layers(folder, 4);
  const auto whole = run_world(4, options, {.loop = {.steps = 9}, .shard_degree = 2});
  require_success(whole);
  const std::string directory = folder / "checkpoints";
  std::vector<double> joined;
  struct Part {
    int wrap;
    int64_t stop_at_step;
  };
  for (const Part& next : {Part{2, 3}, Part{1, 6}, Part{5, -1}}) {
    options.wrap = next.wrap;
    const auto part = run_world(4, options,
                                {.loop = {.steps = 9},
                                 .checkpoint_directory = directory,
                                 .stop_at_step = next.stop_at_step,
                                 .shard_degree = 2});
    require_success(part);
    joined.insert(joined.end(), part[0].losses.begin(), part[0].losses.end());
  }
  CHECK(joined == whole[0].losses);
}
