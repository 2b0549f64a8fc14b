#include "runtime/trainer/weights/gguf.h"

#include <bit>
#include <cstring>

namespace shardrun::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are written as they lie in memory");

constexpr uint32_t kNumber = 4, kInteger = 5, kReal = 6, kTruth = 7, kText = 8, kList = 9;
constexpr uint32_t kGgmlF32 = 0, kGgmlBf16 = 30;

template <typename Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

}  // namespace

void GgufFacts::begin(std::string_view key, uint32_t type) {
  ++count_;
  append_text(bytes_, key);
  append(bytes_, type);
}

void GgufFacts::number(std::string_view key, uint32_t value) {
  begin(key, kNumber);
  append(bytes_, value);
}

void GgufFacts::real(std::string_view key, float value) {
  begin(key, kReal);
  append(bytes_, value);
}

void GgufFacts::truth(std::string_view key, bool value) {
  begin(key, kTruth);
  append(bytes_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufFacts::text(std::string_view key, std::string_view value) {
  begin(key, kText);
  append_text(bytes_, value);
}

void GgufFacts::texts(std::string_view key, std::span<const std::string> values) {
  begin(key, kList);
  append(bytes_, kText);
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) append_text(bytes_, value);
}

void GgufFacts::integers(std::string_view key, std::span<const int32_t> values) {
  begin(key, kList);
  append(bytes_, kInteger);
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) append(bytes_, value);
}

uint64_t gguf_padding(uint64_t bytes) {
  return (kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment;
}

std::string encode_gguf(const GgufFacts& facts, std::span<const TensorEntry> tensors) {
  std::string bytes = "GGUF";
  append(bytes, uint32_t{3});
  append(bytes, static_cast<uint64_t>(tensors.size()));
  append(bytes, facts.count());
  bytes += facts.bytes();
  uint64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    SHARDRUN_CHECK(tensor.type == TensorType::kF32 || tensor.type == TensorType::kBf16);
    append_text(bytes, tensor.name);
    append(bytes, static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
      append(bytes, static_cast<uint64_t>(*extent));
    append(bytes, tensor.type == TensorType::kF32 ? kGgmlF32 : kGgmlBf16);
    append(bytes, offset);
    offset += static_cast<uint64_t>(tensor.elements() * bytes_per_element(tensor.type));
    offset += gguf_padding(offset);
  }
  bytes.append(gguf_padding(bytes.size()), '\0');
  return bytes;
}

}  // namespace shardrun::weights
