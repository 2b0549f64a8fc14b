#include "runtime/measure/layer_work.h"

#include <cstdint>
#include <vector>

#include "runtime/measure/small_values.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::measure {
namespace {

using kernels::Bf16;

constexpr int64_t kTokens = 64, kWidth = 256;
constexpr int64_t kMatrices = 32;  // more than the caches that a core has to itself

class LayerWork {
 public:
  void operator()() {
    kernels::cpu_backend().ops<Bf16>().products.linear_forward(
        out_.data(), in_.data(), weights_.data() + matrix_ * kWidth * kWidth, kTokens, kWidth, kWidth);
    matrix_ = (matrix_ + 1) % kMatrices;
  }

 private:
  std::vector<Bf16> in_ = small_values(kTokens * kWidth), out_ = in_,
                    weights_ = small_values(kMatrices * kWidth * kWidth);
  int64_t matrix_ = 0;
};

}  // namespace

std::function<void()> layer_work() {
  return LayerWork();
}

}  // namespace shardrun::measure
