// Runs libFuzzer over the checkpoint's byte parsers. Each input is parsed as it stands and again with a checksum
// that holds, so that what lies behind the checksum is reached too.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/trainer/checkpoint/format.h"
#include "runtime/trainer/checkpoint/manifest.h"

using namespace shardrun;
using namespace shardrun::checkpoint;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Returns `text` as a shard file whose fixed fields and checksum are right.
std::string with_shard_checksum(std::string text) {
  const std::string fixed = encode(ShardHeader{});
  if (text.size() < fixed.size()) return text;
  text.replace(0, 16, fixed, 0, 16);
  const auto length = header_bytes_of(bytes_of(text));
  if (!length || text.size() < *length) return text;
  const auto header = bytes_of(text).first(*length);
  const uint32_t crc = base::crc32c(header.subspan(ShardHeader::kFixedBytes), base::crc32c(header.first(36)));
  std::memcpy(text.data() + 36, &crc, sizeof(crc));
  return text;
}

std::string with_manifest_checksum(const std::string& text) {
  nlohmann::json object = base::parse_json(text);
  if (!object.is_object()) return text;
  object.erase("crc32c");
  object["crc32c"] = base::crc32c(bytes_of(base::json_text(object)));
  return base::json_text(object);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& shard : {text, with_shard_checksum(text)}) {
    const auto header = parse_shard_header(bytes_of(shard));
    // What is accepted is consistent: encoding it again gives the same bytes.
    if (header) SHARDRUN_CHECK(shard.starts_with(encode(*header).substr(0, 36)));
  }
  for (const std::string& json : {text, with_manifest_checksum(text)}) {
    const auto manifest = parse_manifest(json);
    if (manifest) SHARDRUN_CHECK(parse_manifest(to_json(*manifest)).has_value());
  }
  (void)parse_step_name(text);
  return 0;
}
