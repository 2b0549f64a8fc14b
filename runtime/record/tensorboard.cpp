#include "runtime/record/tensorboard.h"

#include <bit>
#include <cstring>

#include "runtime/base/io.h"

namespace shardrun::record {
namespace {

// Fields of protocol buffers: a key of field number and wire type, then the value.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Little-endian, as the formats are.
template <typename T>
void put_fixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void put_key(std::string& out, uint64_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_double(std::string& out, uint64_t field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value));
}

uint32_t masked_checksum(std::string_view bytes) {
  const uint32_t crc = base::crc32c(std::as_bytes(std::span(bytes)));
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string framed(const std::string& event) {
  std::string length;
  put_fixed(length, uint64_t{event.size()});
  std::string record = length;
  put_fixed(record, masked_checksum(length));
  record += event;
  put_fixed(record, masked_checksum(event));
  return record;
}

std::string summary_event(double time, int64_t step, std::string_view summary) {
  std::string event;
  put_double(event, 1, time);  // Event.wall_time
  put_key(event, 2, kVarint);  // Event.step
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);  // Event.summary
  return framed(event);
}

}  // namespace

std::string tensorboard_version(double time) {
  std::string event;
  put_double(event, 1, time);            // Event.wall_time
  put_bytes(event, 3, "brain.Event:2");  // Event.file_version
  return framed(event);
}

std::string tensorboard_scalars(double time, int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);  // Summary.Value.tag
    put_key(value, 2, kFixed32);      // Summary.Value.simple_value
    put_fixed(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);  // Summary.value
  }
  return summary_event(time, step, summary);
}

std::string tensorboard_text(double time, int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr uint64_t kString = 7;  // DT_STRING
  std::string shape, tensor, plugin, metadata, value, summary;
  put_key(shape, 1, kVarint);  // TensorShapeProto.Dim.size
  put_varint(shape, 1);
  std::string dimensions;
  put_bytes(dimensions, 2, shape);  // TensorShapeProto.dim
  put_key(tensor, 1, kVarint);      // TensorProto.dtype
  put_varint(tensor, kString);
  put_bytes(tensor, 2, dimensions);  // TensorProto.tensor_shape
  put_bytes(tensor, 8, markdown);    // TensorProto.string_val
  put_bytes(plugin, 1, "text");      // SummaryMetadata.PluginData.plugin_name
  put_bytes(metadata, 1, plugin);    // SummaryMetadata.plugin_data
  put_bytes(value, 1, tag);          // Summary.Value.tag
  put_bytes(value, 8, tensor);       // Summary.Value.tensor
  put_bytes(value, 9, metadata);     // Summary.Value.metadata
  put_bytes(summary, 1, value);      // Summary.value
  return summary_event(time, step, summary);
}

}  // namespace shardrun::record
