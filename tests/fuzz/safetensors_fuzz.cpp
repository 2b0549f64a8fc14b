// Runs libFuzzer over the safetensors parsers: the input is a header, the beginning of a whole file, and an index. What
// is accepted must be consistent: tensors lie inside the file, one behind the other, and are as large as their shapes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/trainer/weights/safetensors.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

// Accepts the header for a file of any size that it could fit, so that what lies behind the last check is reached.
void check(const std::string& json, uint64_t data_bytes) {
  const uint64_t data_begin = SafetensorsLimits::kLengthBytes + json.size();
  auto tensors = parse_header(json, data_begin + data_bytes);
  if (!tensors) return;
  uint64_t end = data_begin;
  for (const TensorEntry& tensor : *tensors) {
    SHARDRUN_CHECK(tensor.begin == end && tensor.end >= tensor.begin);
    const int64_t width = bytes_per_element(tensor.type);
    SHARDRUN_CHECK(width == 0 ||
                   static_cast<uint64_t>(tensor.elements() * width) == tensor.end - tensor.begin);
    end = tensor.end;
  }
  SHARDRUN_CHECK(end == data_begin + data_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)header_length(std::as_bytes(std::span(text)), size);
  for (const uint64_t data_bytes : {0, 4, 8, 12, 64, 1 << 20}) check(text, data_bytes);
  const auto files = parse_index(text);
  if (!files) return 0;
  for (const std::string& file : *files) SHARDRUN_CHECK(file.find('/') == file.npos && !file.empty());
  return 0;
}
