#include "plugins/ofi/control_message.h"

#include <cstring>

namespace shardrun::ofi {

std::optional<ControlMessage> read_control(std::span<const std::byte> received, uint64_t world_size) {
  ControlMessage message;
  if (received.size() != sizeof(message)) return std::nullopt;
  std::memcpy(&message, received.data(), sizeof(message));
  const auto kind = static_cast<uint32_t>(message.kind);
  if (kind < static_cast<uint32_t>(ControlKind::kHowFar) || kind > static_cast<uint32_t>(ControlKind::kRoom))
    return std::nullopt;
  if (message.global_rank >= world_size) return std::nullopt;
  return message;
}

}  // namespace shardrun::ofi
