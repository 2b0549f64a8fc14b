#include "tests/gpu/harness.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::gpu_test {
namespace {

constexpr size_t kGuard = 512;
constexpr std::byte kGuardByte{0xa5}, kPoison{0xff};  // all ones are NaN in every floating-point type

// A fault of the GPU ends the context, so nothing after it means anything.
void need(const base::Result<void>& result, const std::string& what) {
  if (result) return;
  std::fprintf(stderr, "FAIL %s: %s\nThe GPU cannot go on after this; the tests that follow have not run.\n",
               what.c_str(), result.error().to_string().c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

std::vector<double> numbers(const std::vector<std::byte>& bytes, Run::Kind kind) {
  std::vector<double> out;
  const auto each = [&](auto zero, const auto& to_double) {
    for (size_t at = 0; at < bytes.size(); at += sizeof zero) {
      auto value = zero;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      out.push_back(to_double(value));
    }
  };
  const auto plain = [](auto value) { return static_cast<double>(value); };
  switch (kind) {
    case Run::Kind::kFp32:
      each(0.0F, plain);
      break;
    case Run::Kind::kBf16:
      each(Bf16{0}, [](Bf16 value) { return static_cast<double>(kernels::cuda::widened(value)); });
      break;
    case Run::Kind::kFp64:
      each(0.0, plain);
      break;
    case Run::Kind::kInt32:
      each(int32_t{0}, plain);
      break;
    case Run::Kind::kByte:
      each(uint8_t{0}, plain);
      break;
  }
  return out;
}

struct Bytes {
  std::vector<std::byte> values;
  Run::Kind kind;
};

// Returns the first byte in which they differ; equal vectors have none, and the answer is their size.
size_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Runs the op once and returns the outputs. Complains of touched guards and inputs.
std::vector<Bytes> outputs_of(const std::string& what, const std::function<void(Run&)>& run_op,
                              int64_t offset) {
  Run run(offset);
  run_op(run);
  need(device().synchronize(), what);
  std::vector<Bytes> outputs;
  int number = 0;
  for (const Run::Buffer& buffer : run.buffers()) {
    std::vector<std::byte> all(buffer.begin + buffer.bytes + kGuard);
    need(device().copy_out(all.data(), buffer.memory.get(), all.size()), what);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(buffer.begin);
    std::vector<std::byte> values(begin, begin + static_cast<std::ptrdiff_t>(buffer.bytes));
    ++number;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_guard = i < buffer.begin || i >= buffer.begin + buffer.bytes;
      if (!is_guard || all[i] == kGuardByte) continue;
      FAIL_CHECK("FAIL " << what << " offset=" << offset << ": buffer " << number << " of " << buffer.bytes
                         << " bytes was written at byte "
                         << static_cast<int64_t>(i) - static_cast<int64_t>(buffer.begin));
      break;
    }
    if (buffer.is_output) {
      outputs.push_back({std::move(values), buffer.kind});
    } else if (values != buffer.before) {
      FAIL_CHECK("FAIL " << what << " offset=" << offset << ": buffer " << number
                         << ", an input, was changed");
    }
  }
  return outputs;
}

}  // namespace

kernels::cuda::Device& device() {
  static const std::unique_ptr<kernels::cuda::Device> one = [] {
    auto created = kernels::cuda::Device::create({.wait_after_each_op = true});
    need(created ? base::Result<void>() : base::Result<void>(created.error()), "creating the device");
    return std::move(created).value();
  }();
  return *one;
}

template <typename T>
const kernels::Ops<T>& ops() {
  static const kernels::cuda::GpuOps<T> of_device(device());
  return of_device.all();
}
template const kernels::Ops<float>& ops();
template const kernels::Ops<Bf16>& ops();

const kernels::OptimizerOps& optimizer() {
  static const auto of_device = kernels::cuda::make_optimizer(device());
  return *of_device;
}

const kernels::Fp8Ops& fp8() {
  static const auto of_device = kernels::cuda::make_fp8(device());
  return *of_device;
}

Values random_values(int64_t count, uint32_t seed, float spread) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  Values values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<int32_t> random_tokens(int64_t count, int64_t V, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(generator() % static_cast<uint32_t>(V));
  return tokens;
}

std::string what(std::string_view op, std::string_view dtype, Sizes sizes) {
  std::string text = "op=" + std::string(op) + " dtype=" + std::string(dtype);
  for (const auto& [name, size] : sizes) text += std::string(" ") + name + "=" + std::to_string(size);
  return text;
}

void* Run::place(const void* values, size_t bytes, size_t size, Kind kind, bool is_output) {
  Buffer buffer;
  buffer.kind = kind;
  buffer.bytes = bytes;
  buffer.begin = kGuard + static_cast<size_t>(offset_) * size;
  buffer.is_output = is_output;
  std::vector<std::byte> all(buffer.begin + bytes + kGuard, kGuardByte);
  if (values != nullptr) {
    std::memcpy(all.data() + buffer.begin, values, bytes);
  } else {
    std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(buffer.begin), bytes, kPoison);
  }
  if (!is_output) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(buffer.begin);
    buffer.before.assign(begin, begin + static_cast<std::ptrdiff_t>(bytes));
  }
  auto memory = device().allocate(all.size());
  need(memory ? base::Result<void>() : base::Result<void>(memory.error()), "memory for a test");
  buffer.memory = std::move(memory).value();
  need(device().copy_in(buffer.memory.get(), all.data(), all.size()), "a test's input");
  void* const at = buffer.memory.get() + buffer.begin;
  buffers_.push_back(std::move(buffer));
  return at;
}

void compare(const std::string& what, const std::vector<double>& got, const Expected& expected) {
  const std::string where = what + " out=" + expected.name;
  if (got.size() != expected.want.size()) {
    FAIL_CHECK("FAIL " << where << ": " << got.size() << " values, not " << expected.want.size());
    return;
  }
  double difference = 0.0, norm = 0.0, largest = -1.0;
  size_t worst = 0, odd = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double apart = got[i] == expected.want[i] ? 0.0 : std::abs(got[i] - expected.want[i]);
    difference += apart * apart;
    norm += expected.want[i] * expected.want[i];
    if (!std::isfinite(got[i])) ++odd;
    const double weight = std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity();
    if (weight > largest) {
      largest = weight;
      worst = i;
    }
  }
  const double distance = difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
  if (distance <= expected.tolerance) {  // NaN never is
    CHECK(true);
    return;
  }
  FAIL_CHECK("FAIL " << where << ": distance " << distance << " > " << expected.tolerance << "; worst ["
                     << worst << "] of " << got.size() << " got " << got[worst] << " want "
                     << expected.want[worst] << "; " << odd << " not finite");
}

std::vector<std::vector<double>> check_op(const std::string& what, const std::function<void(Run&)>& run_op,
                                          const std::vector<Expected>& expected) {
  std::vector<std::vector<double>> results;
  const auto compare_all = [&](const std::vector<Bytes>& outputs, int64_t offset) {
    REQUIRE_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::vector<double> got = numbers(outputs[i].values, outputs[i].kind);
      compare(what + " offset=" + std::to_string(offset), got, expected[i]);
      if (offset == 0) results.push_back(std::move(got));
    }
  };
  const std::vector<Bytes> first = outputs_of(what, run_op, 0), second = outputs_of(what, run_op, 0);
  compare_all(first, 0);
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i].values == second[i].values) continue;
    FAIL_CHECK("FAIL " << what << " out=" << expected[i].name << ": a second run has other bits, from byte "
                       << first_difference(first[i].values, second[i].values) << " of "
                       << first[i].values.size());
  }
  compare_all(outputs_of(what, run_op, 1), 1);
  return results;
}

void check_same_bits(const std::string& what, const std::function<void(Run&)>& one_way,
                     const std::function<void(Run&)>& other_way) {
  for (const int64_t offset : {0, 1}) {
    const std::vector<Bytes> one = outputs_of(what, one_way, offset),
                             other = outputs_of(what, other_way, offset);
    REQUIRE_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      if (one[i].values == other[i].values) {
        CHECK(true);
        continue;
      }
      FAIL_CHECK("FAIL " << what << " offset=" << offset << ": output " << i + 1 << " differs from byte "
                         << first_difference(one[i].values, other[i].values) << " of "
                         << one[i].values.size());
    }
  }
}

}  // namespace shardrun::gpu_test
