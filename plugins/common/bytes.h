// Bytes that ranks exchange: written one value after the other, and read with checks, because they come from outside.
//
// Values have the byte order of the machine: the ranks of one job run on machines of one kind. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace shardrun::common {

template <typename T>
void put(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

// Writes `size`, as a uint16_t, and then the bytes.
inline void put_bytes(std::vector<std::byte>& out, const void* data, size_t size) {
  put(out, static_cast<uint16_t>(size));
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

// Takes from the front; ok turns false when there is too little, and what is taken then is empty or zero.
struct Reader {
  std::span<const std::byte> left;
  bool ok = true;

  std::span<const std::byte> take(size_t size) {
    if (size > left.size()) {
      ok = false;
      size = 0;
    }
    const auto taken = left.first(size);
    left = left.subspan(size);
    return taken;
  }
  template <typename T>
  T get() {
    T value{};
    const auto bytes = take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
};

}  // namespace shardrun::common
