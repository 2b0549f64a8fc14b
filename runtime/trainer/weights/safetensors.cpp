#include "runtime/trainer/weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::weights {
namespace {

using base::Code;
using base::Error;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr int64_t kLargestTensorElements = int64_t{1} << 48;
constexpr size_t kMostDimensions = 16;

int64_t element_bits(std::string_view dtype) {
  struct Width {
    std::string_view dtype;
    int64_t bits;
  };
  static constexpr Width kWidths[] = {
      {"F64", 64}, {"F32", 32}, {"F16", 16},    {"BF16", 16},   {"I64", 64},   {"I32", 32},
      {"I16", 16}, {"I8", 8},   {"U64", 64},    {"U32", 32},    {"U16", 16},   {"U8", 8},
      {"BOOL", 8}, {"C64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}};
  for (const Width& width : kWidths) {
    if (width.dtype == dtype) return width.bits;
  }
  return 0;  // the bytes of sub-byte types and of future ones cannot be checked against the shape
}

// Parses JSON in which every object's keys are distinct; nlohmann's parser would quietly keep the last of two.
Result<json> parse_distinct(std::string_view text) {
  if (base::nests_too_deep(text)) return Error(Code::kCorrupt, "the header is no JSON of tensors");
  std::vector<std::set<std::string>> open;
  std::string repeated;
  const auto callback = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end && !open.empty()) open.pop_back();
    if (event == json::parse_event_t::key && !open.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open.back().insert(key).second && repeated.empty()) repeated = key;
    }
    return true;
  };
  json parsed = json::parse(text, callback, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return Error(Code::kCorrupt, "the header is no JSON object");
  if (!repeated.empty()) return Error(Code::kCorrupt, fmt::format("\"{}\" appears twice", repeated));
  return parsed;
}

bool is_number_array(const json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const json& item) { return item.is_number_unsigned(); });
}

Result<TensorEntry> entry_from(const std::string& name, const json& value, uint64_t data_begin,
                               uint64_t file_bytes) {
  const auto corrupt = [&](const char* what) {
    return Error(Code::kCorrupt, fmt::format("tensor \"{}\": {}", name, what));
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string())
    return corrupt("has no dtype");
  if (!value.contains("shape") || !is_number_array(value["shape"]) ||
      value["shape"].size() > kMostDimensions) {
    return corrupt("has no possible shape");
  }
  if (!value.contains("data_offsets") || !is_number_array(value["data_offsets"]) ||
      value["data_offsets"].size() != 2) {
    return corrupt("has no data_offsets");
  }
  TensorEntry entry;
  entry.name = name;
  entry.dtype = value["dtype"].get<std::string>();
  entry.type = tensor_type(entry.dtype);
  int64_t elements = 1;
  bool empty = false;
  for (const json& item : value["shape"]) {
    const auto extent = item.get<uint64_t>();
    if (extent > static_cast<uint64_t>(kLargestTensorElements)) return corrupt("has no possible shape");
    entry.shape.push_back(static_cast<int64_t>(extent));
    empty = empty || extent == 0;
    if (extent == 0) continue;
    if (static_cast<int64_t>(extent) > kLargestTensorElements / elements)
      return corrupt("has no possible shape");
    elements *= static_cast<int64_t>(extent);
  }
  const auto begin = value["data_offsets"][0].get<uint64_t>(), end = value["data_offsets"][1].get<uint64_t>();
  if (begin > end || end > file_bytes - data_begin) return corrupt("lies outside of the file");
  const int64_t bits = element_bits(entry.dtype);
  const auto wanted = static_cast<uint64_t>(empty ? 0 : elements * bits / 8);
  if (bits != 0 && end - begin != wanted) return corrupt("has a shape that does not give its bytes");
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

float from_half(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16, exponent = half >> 10 & 0x1fU,
                 mantissa = half & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 0x1f ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

template <typename T>
T load(std::span<const std::byte> bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

int64_t TensorEntry::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t bytes_per_element(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 4;
    case TensorType::kF16:
    case TensorType::kBf16:
      return 2;
    case TensorType::kOther:
      return 0;
  }
  return 0;
}

TensorType tensor_type(std::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  return dtype == "BF16" ? TensorType::kBf16 : TensorType::kOther;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<uint64_t> header_length(std::span<const std::byte> first, uint64_t file_bytes) {
  if (first.size() < SafetensorsLimits::kLengthBytes)
    return Error(Code::kCorrupt, "too short for a safetensors file");
  const auto length = load<uint64_t>(first, 0);
  if (length > SafetensorsLimits::kHeaderBytes || length + SafetensorsLimits::kLengthBytes > file_bytes) {
    return Error(Code::kCorrupt, fmt::format("its header would have {} bytes; no safetensors file", length));
  }
  return length;
}

Result<std::vector<TensorEntry>> parse_header(std::string_view text, uint64_t file_bytes) {
  const uint64_t data_begin = SafetensorsLimits::kLengthBytes + text.size();
  if (data_begin > file_bytes) return Error(Code::kCorrupt, "the header is cut off");
  ASSIGN_OR_RETURN(const auto header, parse_distinct(text));
  std::vector<TensorEntry> entries;
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") continue;
    ASSIGN_OR_RETURN(auto entry, entry_from(item.key(), item.value(), data_begin, file_bytes));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t end = data_begin;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != end) {
      const char* what = entry.begin < end ? "overlaps another" : "leaves a gap before it";
      return Error(Code::kCorrupt, fmt::format("tensor \"{}\" {}", entry.name, what));
    }
    end = entry.end;
  }
  if (end != file_bytes) {
    return Error(Code::kCorrupt, fmt::format("its tensors end at byte {}, the file at {}", end, file_bytes));
  }
  return entries;
}

std::string encode_header(std::vector<TensorEntry>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (TensorEntry& tensor : tensors) {
    tensor.begin = offset;
    offset += static_cast<uint64_t>(tensor.elements() * bytes_per_element(tensor.type));
    tensor.end = offset;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = base::json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  for (TensorEntry& tensor : tensors) {
    tensor.begin += SafetensorsLimits::kLengthBytes + length;
    tensor.end += SafetensorsLimits::kLengthBytes + length;
  }
  std::string bytes(SafetensorsLimits::kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

Result<std::vector<std::string>> parse_index(std::string_view text) {
  ASSIGN_OR_RETURN(const auto index, parse_distinct(text));
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Error(Code::kCorrupt, "has no weight_map");
  }
  std::set<std::string> files;
  for (const auto& item : index["weight_map"].items()) {
    const std::string file = item.value().is_string() ? item.value().get<std::string>() : "";
    if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return Error(Code::kCorrupt,
                   fmt::format("tensor \"{}\" is said to be in no possible file", item.key()));
    }
    files.insert(file);
  }
  return std::vector<std::string>(files.begin(), files.end());
}

std::string encode_index(std::span<const IndexedTensor> tensors, uint64_t total_bytes) {
  json map = json::object();
  for (const IndexedTensor& tensor : tensors) map[tensor.name] = tensor.file;
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(map)}};
  return base::json_text(index, /*indent=*/2) + "\n";
}

void to_fp32(std::span<const std::byte> bytes, TensorType type, std::span<float> out) {
  SHARDRUN_CHECK(static_cast<int64_t>(bytes.size()) ==
                 static_cast<int64_t>(out.size()) * bytes_per_element(type));
  if (type == TensorType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto half = load<uint16_t>(bytes, i);
    out[i] = type == TensorType::kBf16 ? std::bit_cast<float>(uint32_t{half} << 16) : from_half(half);
  }
}

void from_fp32(std::span<const float> values, TensorType type, std::span<std::byte> out) {
  SHARDRUN_CHECK(type == TensorType::kF32 || type == TensorType::kBf16);
  SHARDRUN_CHECK(static_cast<int64_t>(out.size()) ==
                 static_cast<int64_t>(values.size()) * bytes_per_element(type));
  if (type == TensorType::kF32) {
    if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1U);
    const auto half = static_cast<uint16_t>((std::isnan(values[i]) ? bits | 0x400000U : rounded) >> 16);
    std::memcpy(out.data() + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace shardrun::weights
