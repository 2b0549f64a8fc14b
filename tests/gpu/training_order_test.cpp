// What an order of the GPU's work could spoil: only the emulated GPU can be told which.
#include <doctest/doctest.h>

#include "tests/emulation/settings.h"
#include "tests/gpu/training.h"

namespace gpu_training {

TEST_CASE("training on a GPU: every order of streams, blocks and warps gives the same bits") {
  const tests::Folder folder;
  emulation::set_seed(0);
  const auto late = train(folder, {.compute = kernels::DType::kBf16, .steps = 6});
  const auto shared = train(folder, {.steps = 4, .ranks = 2});
  for (const uint64_t seed : {1, 7, 8}) {
    emulation::set_seed(seed);
    CHECK_EQ(train(folder, {.compute = kernels::DType::kBf16, .steps = 6}), late);
    CHECK_EQ(train(folder, {.steps = 4, .ranks = 2}), shared);
  }
  emulation::set_seed(0);
}

}  // namespace gpu_training
