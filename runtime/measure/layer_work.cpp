#include "runtime/measure/layer_work.h"

#include <cstdint>
#include <vector>

#include "runtime/trainer/kernels/backend.h"

namespace shardrun::measure {
namespace {

using kernels::Bf16;

constexpr int64_t kTokens = 64, kWidth = 256;
constexpr int64_t kMatrices = 32;  // more than the caches that a core has to itself

// Computes with values of both signs around 0.02, as block_times' are.
class LayerWork {
 public:
  LayerWork() : in_(kTokens * kWidth), out_(kTokens * kWidth), weights_(kMatrices * kWidth * kWidth) {
    fill(in_);
    fill(weights_);
  }

  void operator()() {
    kernels::cpu_backend().ops<Bf16>().products.linear_forward(
        out_.data(), in_.data(), weights_.data() + matrix_ * kWidth * kWidth, kTokens, kWidth, kWidth);
    matrix_ = (matrix_ + 1) % kMatrices;
  }

 private:
  static void fill(std::vector<Bf16>& values) {
    uint32_t state = 1;
    for (Bf16& value : values) {
      state = state * 1664525U + 1013904223U;
      value = Bf16{static_cast<uint16_t>(0x3C00U | (state >> 25) | (state & 0x8000U))};
    }
  }

  std::vector<Bf16> in_, out_, weights_;
  int64_t matrix_ = 0;
};

}  // namespace

std::function<void()> layer_work() {
  return LayerWork();
}

}  // namespace shardrun::measure
