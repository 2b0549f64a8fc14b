// What ends a step, in fp32 (kernels/cpu/vector.h).
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestElements = 64 * 1024;  // fewer are not worth a thread

// Sums in fp64 in sixteen lanes.
double squares_of(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double total = 0.0;
  for (double lane : lanes) total += lane;
  for (; i < values.size(); ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

class CpuOptimizer final : public OptimizerOps {
 public:
  void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) const override {
    kernels::fp32_to_bf16(in, out);
  }
  void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out) const override {
    kernels::bf16_to_fp32(in, out);
  }

  void accumulate(double* y, const double* x, int64_t count) const override {
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
  }

  void sum_of_squares(double* sum, std::span<const float> values) const override {
    constexpr int64_t kPart = int64_t{1}
                              << 20;  // parts are added in order: the same bits for any thread count
    const auto count = static_cast<int64_t>(values.size());
    std::vector<double> parts((count + kPart - 1) / kPart);
    parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        parts[part] = squares_of(values.subspan(part * kPart, std::min(kPart, count - part * kPart)));
    });
    *sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  }

  void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                  std::span<const float> gradient, const AdamWParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                   master.size() == gradient.size());
    parallel_for(static_cast<int64_t>(master.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
      vector::adamw(master.data() + begin, moment1.data() + begin, moment2.data() + begin,
                    gradient.data() + begin, end - begin, parameters);
    });
  }

  void lamb_measure(LambSquares* squares, std::span<const float> master, std::span<float> moment1,
                    std::span<float> moment2, std::span<const float> gradient,
                    const LambParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                   master.size() == gradient.size());
    const auto count = static_cast<int64_t>(master.size());
    std::vector<vector::Squares> parts((count + kChunk - 1) / kChunk);
    for_chunks(count, [&](int64_t at, int64_t size) {
      parts[at / kChunk] = vector::lamb_measure(master.data() + at, moment1.data() + at, moment2.data() + at,
                                                gradient.data() + at, size, parameters);
    });
    *squares = {0.0, 0.0};
    for (const vector::Squares& part : parts) {
      squares->master += static_cast<double>(part.master);
      squares->update += static_cast<double>(part.update);
    }
  }

  void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                  const float* rate, const LambParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size());
    for_chunks(static_cast<int64_t>(master.size()), [&](int64_t at, int64_t size) {
      vector::lamb_apply(master.data() + at, moment1.data() + at, moment2.data() + at, *rate, size,
                         parameters);
    });
  }
};

}  // namespace

const OptimizerOps& cpu_optimizer() {
  static const CpuOptimizer ops;
  return ops;
}

void fp32_to_bf16(std::span<const float> in, std::span<Bf16> out) {
  SHARDRUN_CHECK(in.size() == out.size());
  parallel_for(static_cast<int64_t>(in.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
    vector::narrow(out.data() + begin, in.data() + begin, end - begin);
  });
}

void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) {
  static_assert(sizeof(Bf16) == sizeof(uint16_t) && alignof(Bf16) == alignof(uint16_t));
  fp32_to_bf16(in, std::span(reinterpret_cast<Bf16*>(out.data()), out.size()));
}

void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out) {
  SHARDRUN_CHECK(in.size() == out.size());
  parallel_for(static_cast<int64_t>(in.size()), kSmallestElements, [&](int64_t begin, int64_t end) {
    vector::widen(out.data() + begin, in.data() + begin, end - begin);
  });
}

}  // namespace shardrun::kernels
