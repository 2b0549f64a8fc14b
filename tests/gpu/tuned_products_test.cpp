// Tests products whose proposals are timed, where that goes wrong: on the emulated GPU alone, which refuses
// products and has no more memory when it is told so.
#include <doctest/doctest.h>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/settings.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;

namespace {

constexpr int64_t kN = 24, kC = 40, kO = 16;
constexpr int kProposals = 3;  // how many the emulated cublasLt makes

// cublasLt has products, whatever EMULATED_GPU says; the settings are as they were when the test is over.
struct Scripted {
  Scripted() { emulation::settings().has_products = true; }
  ~Scripted() { emulation::settings() = before; }
  const emulation::Settings before = emulation::settings();
};

// Makes one product on a new device that tunes: gradients of the input, added to what was there before.
struct TunedProduct {
  TunedProduct() {
    auto created = cuda::Device::create({});
    REQUIRE(created);
    device = std::move(*created);
    device->tune_products(true);
    dy = memory_of(as<float>(random_values(kN * kO, 1)));
    w = memory_of(as<float>(random_values(kO * kC, 2)));
    dx = memory_of(before);
  }
  cuda::Memory memory_of(const Values& values) {
    auto memory = device->allocate(values.size() * sizeof(float));
    REQUIRE(memory);
    REQUIRE(device->copy_in(memory->get(), values.data(), values.size() * sizeof(float)));
    return std::move(*memory);
  }
  void run(bool accumulate) {
    const auto at = [](const cuda::Memory& memory) { return reinterpret_cast<float*>(memory.get()); };
    cuda::make_products<float>(*device)->linear_backward_input(at(dx), at(dy), at(w), kN, kC, kO, accumulate);
  }
  void check_result(bool accumulate) {
    Values want(before.size()), got(before.size());
    reference::linear_backward_input(want.data(), random_values(kN * kO, 1).data(),
                                     random_values(kO * kC, 2).data(), kN, kC, kO);
    for (size_t i = 0; accumulate && i < want.size(); ++i) want[i] += before[i];
    REQUIRE(device->copy_out(got.data(), dx.get(), got.size() * sizeof(float)));
    compare("linear_backward_input, tuned", {got.begin(), got.end()}, {"dx", want, kTolerance<float>});
  }

  const Values before = random_values(kN * kC, 3);
  std::unique_ptr<cuda::Device> device;
  cuda::Memory dy, w, dx;
};

}  // namespace

TEST_CASE("tuned products: one whose proposals all fail while they are timed is computed all the same") {
  for (const bool accumulate : {false, true}) {
    const Scripted scripted;
    TunedProduct product;
    emulation::settings().refused_products = kProposals;

    product.run(accumulate);

    CHECK_EQ(emulation::settings().refused_products, 0);
    CHECK(product.device->synchronize());
    product.check_result(accumulate);
  }
}

TEST_CASE("tuned products: one that fails whatever is tried is an error, not a result that nobody wrote") {
  for (const bool accumulate : {false, true}) {
    const Scripted scripted;
    TunedProduct product;
    emulation::settings().refused_products = -1;

    product.run(accumulate);

    const auto outcome = product.device->synchronize();
    REQUIRE_FALSE(outcome);
    CHECK_NE(outcome.error().to_string().find("cublasLtMatmul of fp32>fp32 NN 40 24 16"), std::string::npos);
  }
}

TEST_CASE("tuned products: timing needs no memory that nobody planned") {
  for (const bool accumulate : {false, true}) {
    const Scripted scripted;
    TunedProduct product;
    emulation::settings().memory_bytes = static_cast<size_t>(emulation::held_memory().gpu);

    product.run(accumulate);

    CHECK(product.device->synchronize());
    product.check_result(accumulate);
  }
}
