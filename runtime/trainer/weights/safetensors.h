// The safetensors format ↔ structs. No I/O.
//
//   8 bytes   N, little-endian: length of the header
//   N bytes   JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …,
//             "__metadata__": {"format": "pt"}}; offsets count from the end of the header
//   …         the tensors' elements, little-endian, row-major, without gaps
//
// A worked example: one F32 tensor "a" of shape [1]: the header {"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}
// has 54 bytes, so the file begins 36 00 00 00 00 00 00 00, its one element lies at byte 62, and it has 66 bytes.
//
// Thread rule: pure functions and values.
// Source: github.com/huggingface/safetensors, README and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::weights {

using base::Result;

// The types that we can turn into fp32. The rest of the format's types is kOther, which a file may hold as long as
// nobody asks for the tensor.
enum class TensorType { kF32, kF16, kBf16, kOther };

struct TensorEntry {
  std::string name;
  std::string dtype;  // as the file says
  TensorType type = TensorType::kOther;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the file

  int64_t elements() const;
};

int64_t bytes_per_element(TensorType type);  // 0 for kOther
TensorType tensor_type(std::string_view dtype);
// Returns a text such as "[4096, 11008]".
std::string shape_text(std::span<const int64_t> shape);

struct SafetensorsLimits {
  static constexpr uint64_t kLengthBytes = 8;
  static constexpr uint64_t kHeaderBytes = 100'000'000;  // the limit of the reference implementation
};

// Returns the length of the JSON, from the first 8 bytes; kCorrupt when it is above the limit or beyond the file.
Result<uint64_t> header_length(std::span<const std::byte> first, uint64_t file_bytes);
// Returns the tensors in the order of their data. kCorrupt, naming the tensor, for anything that does not add up: a
// shape that does not give the tensor's bytes, tensors that overlap, leave a gap or end elsewhere than the file.
Result<std::vector<TensorEntry>> parse_header(std::string_view json, uint64_t file_bytes);

// Returns the first bytes of a file with these tensors one behind the other; sets begin and end of `tensors`. The
// header is padded with spaces so that the data begins at a multiple of 8.
std::string encode_header(std::vector<TensorEntry>& tensors);

// Reads model.safetensors.index.json. Returns the files that hold the tensors, each once, ascending. kCorrupt for
// names that lead out of the folder.
Result<std::vector<std::string>> parse_index(std::string_view json);
struct IndexedTensor {
  std::string name, file;
};
std::string encode_index(std::span<const IndexedTensor> tensors, uint64_t total_bytes);

// Converts elements of the file's type to fp32, exactly.
void to_fp32(std::span<const std::byte> bytes, TensorType type, std::span<float> out);
// Converts to F32 exactly, or to BF16, rounded to nearest even; NaN stays NaN. Another type is a bug (CHECK).
void from_fp32(std::span<const float> values, TensorType type, std::span<std::byte> out);

}  // namespace shardrun::weights
