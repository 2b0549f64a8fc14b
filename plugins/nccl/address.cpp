#include "plugins/nccl/address.h"

#include <algorithm>
#include <cstring>

#include "plugins/common/bytes.h"

namespace shardrun::nccl {
namespace {

constexpr uint32_t kMagic = 0x316e7273;  // "srn1"

}  // namespace

std::vector<std::byte> pack(const RankAddress& address) {
  std::vector<std::byte> ids;
  uint16_t count = 0;
  for (const UniqueId& id : address.ids) {
    size_t size = sizeof(id.internal);
    while (size > 0 && id.internal[size - 1] == 0) --size;
    if (ids.size() + size + 16 > kLongestAddress) break;
    common::put_bytes(ids, id.internal, size);
    ++count;
  }
  std::vector<std::byte> out;
  common::put(out, kMagic);
  common::put(out, static_cast<uint32_t>(address.nccl_version));
  common::put(out, count);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

Status unpack(std::span<const std::byte> bytes, RankAddress* address) {
  common::Reader reader{bytes};
  if (reader.get<uint32_t>() != kMagic) {
    return {SHARDRUN_COMM_INVALID, "an address is not of this plugin: do all ranks load the same one?"};
  }
  address->nccl_version = static_cast<int>(reader.get<uint32_t>());
  const auto count = reader.get<uint16_t>();
  address->ids.clear();
  for (uint16_t i = 0; i < count && reader.ok; ++i) {
    const auto value = reader.take(reader.get<uint16_t>());
    UniqueId id{};
    if (value.size() > sizeof(id.internal)) reader.ok = false;
    std::memcpy(id.internal, value.data(), std::min(value.size(), sizeof(id.internal)));
    address->ids.push_back(id);
  }
  if (!reader.ok || !reader.left.empty() || count == 0)
    return {SHARDRUN_COMM_INVALID, "an address is cut short or too long"};
  return {};
}

}  // namespace shardrun::nccl
