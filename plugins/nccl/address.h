// What a rank tells the others through the host: its version of NCCL, and unique ids for the channels of which it
// will be the first member.
//
// A unique id serves one communicator. It is mostly zeros, so its trailing zeros are not sent and more ids fit.
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plugins/common/status.h"
#include "plugins/nccl/nccl_types.h"

namespace shardrun::nccl {

using common::Status;

constexpr size_t kLongestAddress = 1024;  // comm_v1.h

struct RankAddress {
  int nccl_version = 0;
  std::vector<UniqueId> ids;
};

// Packs as many of the ids as fit, which are at least 7 and may be fewer than were given.
std::vector<std::byte> pack(const RankAddress& address);

// INVALID: bytes that pack() does not make.
Status unpack(std::span<const std::byte> bytes, RankAddress* address);

}  // namespace shardrun::nccl
