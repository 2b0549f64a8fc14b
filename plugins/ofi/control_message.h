// ControlMessage: the small messages between the engines' threads, by which a receiver says for how much it has room, and a rank
// whose time is up learns how far the others have come. They travel under a tag that follows from the job's key; what they say is
// checked all the same, because the bytes of a message are whatever a peer's memory held.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace shardrun::ofi {

enum class ControlKind : uint32_t { kHowFar = 1, kThisFar = 2, kGreeting = 3, kRoom = 4 };

struct ControlMessage {
  ControlKind kind = ControlKind::kGreeting;
  uint32_t global_rank = 0;  // of the sender
  uint32_t channel = 0;
  uint32_t step = 0;      // of the flow for which there is room
  uint64_t ticket = 0;    // asked about, the newest that the sender has begun, or the flow's
  uint64_t total = 0;     // bytes of the flow
  uint64_t segments = 0;  // of it, from its first, that the sender of this message waits for
};

// Returns the message that was received; nullopt when it is none, or its sender is no rank of a job of `world_size`.
std::optional<ControlMessage> read_control(std::span<const std::byte> received, uint64_t world_size);

}  // namespace shardrun::ofi
