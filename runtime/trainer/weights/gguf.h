// The first part of a GGUF file, version 3, as llama.cpp reads it. No I/O.
//
//   "GGUF", u32 3, u64 tensors, u64 facts
//   for each fact     its key, u32 type, its value; a text is u64 length and bytes, a list u32 type of its elements, u64 length, these
//   for each tensor   its name, u32 dimensions, u64 extents (the innermost first), u32 type, u64 offset
//   zeros up to a multiple of 32, from which offsets count; then the tensors, each from a multiple of 32
//
// Integers are little-endian. Thread rule: values and pure functions.
// Source: the specification of GGUF in github.com/ggml-org/ggml.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trainer/weights/safetensors.h"

namespace shardrun::weights {

// What a file says beside its tensors.
class GgufFacts {
 public:
  void number(std::string_view key, uint32_t value);
  void real(std::string_view key, float value);
  void truth(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, std::span<const std::string> values);
  void integers(std::string_view key, std::span<const int32_t> values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);

  uint64_t count_ = 0;
  std::string bytes_;
};

inline constexpr uint64_t kGgufAlignment = 32;

// Returns the bytes up to the first tensor. Tensors are F32 or BF16; anything else is a bug (CHECK).
std::string encode_gguf(const GgufFacts& facts, std::span<const TensorEntry> tensors);
// Returns how many zeros follow that many bytes.
uint64_t gguf_padding(uint64_t bytes);

}  // namespace shardrun::weights
