// Tests staged communicators over real links: ranks are threads that share one GPU, each with a device of its own.
#include "runtime/trainer/comm/staged_communicator.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "runtime/trainer/kernels/cuda/device.h"
#include "tests/fakes/thread_world.h"

using namespace shardrun;
namespace cuda = kernels::cuda;

namespace {

// Returns the error's text, if there is an error, from a function that returns text.
#define RETURN_TEXT_IF_ERROR(expression)                            \
  do {                                                              \
    const auto& result_of_step = (expression);                      \
    if (!result_of_step) return result_of_step.error().to_string(); \
  } while (false)

constexpr size_t kCount = 3001;  // a rank's part: three pieces of 4096 bytes, the last one cut short

float value(int rank, size_t i, int round) {
  return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 97) + round);
}

// What a rank has on its GPU: the stream copies into `in` just before an operation, and out of `out` just after it.
struct Buffers {
  explicit Buffers(cuda::Device& on, size_t in_count, size_t out_count) {
    for (auto [memory, count] : {std::pair(&source, in_count), std::pair(&in, in_count),
                                 std::pair(&out, out_count), std::pair(&seen, out_count)}) {
      auto made = on.allocate(count * sizeof(float));
      if (made) *memory = std::move(*made);
    }
  }
  static float* floats(const cuda::Memory& memory) { return reinterpret_cast<float*>(memory.get()); }
  cuda::Memory source, in, out, seen;
};

std::string check_rank(cuda::Device& on, comm::Communicator& gathers, comm::Communicator& sums) {
  const auto ranks = static_cast<size_t>(gathers.size());
  const int rank = gathers.rank();
  Buffers gather(on, kCount, kCount * ranks), sum(on, kCount * ranks, kCount);
  for (int round = 0; round < 4; ++round) {
    std::vector<float> values(kCount * ranks);
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank, i, round);
    RETURN_TEXT_IF_ERROR(on.copy_in(gather.source.get(), values.data(), kCount * sizeof(float)));
    RETURN_TEXT_IF_ERROR(on.copy_in(sum.source.get(), values.data(), values.size() * sizeof(float)));
    on.copy(gather.in.get(), gather.source.get(), kCount * sizeof(float));
    auto gathering = gathers.all_gather({gather.in.get(), kCount * sizeof(float)},
                                        {gather.out.get(), kCount * ranks * sizeof(float)});
    on.copy(sum.in.get(), sum.source.get(), values.size() * sizeof(float));
    auto summing =
        sums.reduce_scatter({Buffers::floats(sum.in), kCount * ranks}, {Buffers::floats(sum.out), kCount});
    RETURN_TEXT_IF_ERROR(gathering);
    RETURN_TEXT_IF_ERROR(summing);
    RETURN_TEXT_IF_ERROR(gathers.wait(*gathering));
    on.copy(gather.seen.get(), gather.out.get(), kCount * ranks * sizeof(float));
    RETURN_TEXT_IF_ERROR(sums.wait(*summing));
    on.copy(sum.seen.get(), sum.out.get(), kCount * sizeof(float));
    std::vector<float> all(kCount * ranks), part(kCount);
    RETURN_TEXT_IF_ERROR(on.copy_out(all.data(), gather.seen.get(), all.size() * sizeof(float)));
    RETURN_TEXT_IF_ERROR(on.copy_out(part.data(), sum.seen.get(), part.size() * sizeof(float)));
    for (size_t i = 0; i < kCount; ++i) {
      float total = 0;
      for (size_t from = 0; from < ranks; ++from) {
        if (all[from * kCount + i] != value(static_cast<int>(from), i, round)) return "all_gather: wrong";
        total += value(static_cast<int>(from), static_cast<size_t>(rank) * kCount + i, round);
      }
      if (part[i] != total) return "reduce_scatter: wrong";
    }
  }
  return {};
}

std::string run_rank(fakes::ThreadWorld& world, int rank) {
  auto device = cuda::Device::create({});
  RETURN_TEXT_IF_ERROR(device);
  std::vector<std::unique_ptr<comm::Communicator>> staged;
  for (int channel = 0; channel < 2; ++channel) {
    auto link = (*device)->make_link();
    RETURN_TEXT_IF_ERROR(link);
    auto made = comm::make_staged(world.communicator(rank, channel), std::move(*link), {4096});
    RETURN_TEXT_IF_ERROR(made);
    staged.push_back(std::move(*made));
  }
  return check_rank(**device, *staged[0], *staged[1]);
}

}  // namespace

TEST_CASE("staged: ranks that share a GPU gather and add up what their streams put there just before") {
  for (const int ranks : {1, 2, 3}) {
    fakes::ThreadWorld world(ranks, {.timeout = std::chrono::seconds(60)});
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { errors[static_cast<size_t>(rank)] = run_rank(world, rank); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) CHECK_EQ(error, "");
  }
}
