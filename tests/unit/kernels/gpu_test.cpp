#include "runtime/trainer/kernels/gpu.h"

#include <doctest/doctest.h>

using namespace shardrun;

namespace {

std::string refusal(const kernels::GpuOptions& options, int visible, std::string_view why_none = "") {
  const auto chosen = kernels::choose_gpu(options, visible, why_none);
  REQUIRE_FALSE(chosen);
  CHECK(chosen.error().code() == base::Code::kNotFound);
  return chosen.error().message();
}

}  // namespace

TEST_CASE("a rank's GPU: one each, in the order of local ranks") {
  for (int rank = 0; rank < 4; ++rank)
    CHECK_EQ(kernels::choose_gpu({.local_rank = rank, .gpus_per_node = 4}, 4).value(), rank);
}

TEST_CASE("a rank's GPU: ranks share one only where the job says so") {
  CHECK_EQ(kernels::choose_gpu({.local_rank = 1, .gpus_per_node = 2, .ranks_per_gpu = 2}, 2).value(), 0);
  CHECK_EQ(kernels::choose_gpu({.local_rank = 2, .gpus_per_node = 2, .ranks_per_gpu = 2}, 2).value(), 1);
  CHECK_NE(refusal({.local_rank = 1, .gpus_per_node = 1}, 1).find("wants GPU 1, but 1 can be used"),
           std::string::npos);
}

TEST_CASE("a rank's GPU: a scheduler that shows each rank its own is believed") {
  CHECK_EQ(kernels::choose_gpu({.local_rank = 3, .gpus_per_node = 4}, 1).value(), 0);
}

TEST_CASE("a rank's GPU: a node without one says what may be the matter") {
  CHECK_EQ(
      refusal({}, 0, "no NVIDIA driver (libcuda.so.1) was found"),
      "no GPU can be used here: no NVIDIA driver (libcuda.so.1) was found; mend that, choose other nodes, or "
      "set [resources] device = \"cpu\"");
}

TEST_CASE("a rank's GPU: a shardrun without its library says how to get one") {
  const auto gpu = kernels::Gpu::open("/nowhere/libshardrun_gpu.so", {});
  REQUIRE_FALSE(gpu);
  CHECK(gpu.error().code() == base::Code::kNotFound);
  CHECK_NE(gpu.error().message().find("built without CUDA"), std::string::npos);
}
