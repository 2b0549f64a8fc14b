// How an op is tested on a GPU: it runs twice on fresh memory and must give the same bits, then once with every buffer
// one element off its alignment; each time its outputs are compared with what the reference says.
//
// Outputs start as NaN, so what was not written shows; every buffer lies between guard bytes, so what was written
// outside shows; inputs must be what they were. One line says what failed: op, output, dtype, shape, worst element.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/trainer/kernels/cuda/device.h"
#include "runtime/trainer/kernels/cuda/rounding.h"
#include "runtime/trainer/kernels/fp8.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::gpu_test {

using kernels::Bf16;
using Values = std::vector<float>;

// Returns the one device of this process; it waits after each op, so that a fault has the op's name.
kernels::cuda::Device& device();
// Return the ops of that device.
template <typename T>
const kernels::Ops<T>& ops();
const kernels::OptimizerOps& optimizer();
const kernels::Fp8Ops& fp8();

Values random_values(int64_t count, uint32_t seed, float spread = 1.0F);
std::vector<int32_t> random_tokens(int64_t count, int64_t V, uint32_t seed);

// Converts fp32 to T and back: the identity for float, rounding to nearest for Bf16.
template <typename T>
std::vector<T> as(const Values& values) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    std::vector<T> out;
    for (const float value : values) out.push_back(kernels::cuda::nearest(value));
    return out;
  }
}
inline Values back(const std::vector<float>& values) {
  return values;
}
inline Values back(const std::vector<Bf16>& values) {
  Values out;
  for (const Bf16 value : values) out.push_back(kernels::cuda::widened(value));
  return out;
}

// Relative distances ‖got - want‖ / ‖want‖ that rounding alone explains: in fp32 those of sums of a few hundred
// terms; results in bf16 have 8 bits of mantissa, 2^-9 on average. The CPU's ops are held to the same.
template <typename T>
inline constexpr double kTolerance = 2e-6;
template <>
inline constexpr double kTolerance<Bf16> = 4e-3;
inline constexpr double kExact = 0.0;

template <typename T>
inline constexpr const char* kDType = "fp32";
template <>
inline constexpr const char* kDType<Bf16> = "bf16";

// Returns "op=… dtype=… N=3 C=17".
using Sizes = std::initializer_list<std::pair<const char*, int64_t>>;
std::string what(std::string_view op, std::string_view dtype, Sizes sizes);

// Where one run's buffers are; what `out` and `inout` made is read back afterwards, in that order.
class Run {
 public:
  enum class Kind { kFp32, kBf16, kFp64, kInt32, kByte };
  struct Buffer {
    kernels::cuda::Memory memory;
    std::vector<std::byte> before;  // what an input held
    size_t begin = 0, bytes = 0;    // where the buffer lies inside the memory, between the guards
    Kind kind = Kind::kFp32;
    bool is_output = false;
  };

  explicit Run(int64_t offset) : offset_(offset) {}
  kernels::cuda::Device& device() { return gpu_test::device(); }

  template <typename T>
  const T* in(const std::vector<T>& values) {
    return static_cast<const T*>(
        place(values.data(), values.size() * sizeof(T), sizeof(T), kind_of<T>(), false));
  }
  template <typename T>
  T* inout(const std::vector<T>& values) {
    return static_cast<T*>(place(values.data(), values.size() * sizeof(T), sizeof(T), kind_of<T>(), true));
  }
  template <typename T>
  T* out(int64_t count) {
    return static_cast<T*>(
        place(nullptr, static_cast<size_t>(count) * sizeof(T), sizeof(T), kind_of<T>(), true));
  }
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  template <typename T>
  static constexpr Kind kind_of() {
    return std::is_same_v<T, float>     ? Kind::kFp32
           : std::is_same_v<T, Bf16>    ? Kind::kBf16
           : std::is_same_v<T, double>  ? Kind::kFp64
           : std::is_same_v<T, uint8_t> ? Kind::kByte
                                        : Kind::kInt32;
  }
  void* place(const void* values, size_t bytes, size_t size, Kind kind, bool is_output);

  int64_t offset_;
  std::vector<Buffer> buffers_;
};

// One output's values, and how far from them it may be.
struct Expected {
  template <typename T>
  Expected(const char* name_, const std::vector<T>& values, double tolerance_)
      : name(name_), want(values.begin(), values.end()), tolerance(tolerance_) {}
  const char* name;
  std::vector<double> want;
  double tolerance;
};

// `expected` has one for each output, in their order. Returns the first run's outputs as numbers.
std::vector<std::vector<double>> check_op(const std::string& what, const std::function<void(Run&)>& run_op,
                                          const std::vector<Expected>& expected);

// Takes two ways to the same outputs, in the same order: their bits must be equal, aligned and one element off.
void check_same_bits(const std::string& what, const std::function<void(Run&)>& one_way,
                     const std::function<void(Run&)>& other_way);

// Prints one line and counts a failure if they are too far apart.
void compare(const std::string& what, const std::vector<double>& got, const Expected& expected);

}  // namespace shardrun::gpu_test
