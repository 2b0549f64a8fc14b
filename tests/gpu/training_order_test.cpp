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
  Run fp8{.compute = kernels::DType::kBf16, .steps = 4, .ranks = 2};
  fp8.fp8 = true;
  const auto quantized = train(folder, fp8);
  for (const uint64_t seed : {1, 7, 8}) {
    emulation::set_seed(seed);
    CHECK_EQ(train(folder, {.compute = kernels::DType::kBf16, .steps = 6}), late);
    CHECK_EQ(train(folder, {.steps = 4, .ranks = 2}), shared);
    CHECK_EQ(train(folder, fp8), quantized);
  }
  emulation::set_seed(0);
}

TEST_CASE("training a BERT on a GPU: every order of streams, blocks and warps gives the same bits") {
  const tests::Folder folder;
  const Run alone{.compute = kernels::DType::kBf16, .steps = 4, .lamb = true, .bert = true};
  const Run shared{.steps = 3, .ranks = 2, .bert = true};
  emulation::set_seed(0);
  const auto late = train(folder, alone), of_two = train(folder, shared);
  for (const uint64_t seed : {1, 7, 8}) {
    emulation::set_seed(seed);
    CHECK_EQ(train(folder, alone), late);
    CHECK_EQ(train(folder, shared), of_two);
  }
  emulation::set_seed(0);
}

}  // namespace gpu_training
