// Runs libFuzzer over what comes over a liveness link: nothing that was not packed with the job's key is ever read, and what
// was comes back the same; and over the control messages of two engines, which name a rank of the job or are none.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "plugins/ofi/control_message.h"
#include "plugins/ofi/liveness_message.h"

using namespace shardrun::ofi;

namespace {

void check_control(std::span<const std::byte> received) {
  for (const uint64_t world_size : {uint64_t{0}, uint64_t{2}, uint64_t{UINT32_MAX}}) {
    const auto message = read_control(received, world_size);
    if (!message) continue;
    if (message->global_rank >= world_size) __builtin_trap();
    if (std::memcmp(&*message, received.data(), received.size()) != 0) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const shardrun::common::KeyedHash key{{1}};
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_control(std::as_bytes(std::span(data, size)));
  for (const uint32_t from : {0u, UINT32_MAX}) {
    std::string bytes = text;
    LivenessPlace place{from, 1, 0};
    LivenessMessage message;
    if (unpack(&bytes, 8, &place, key, &message) == Unpacked::kWhole) __builtin_trap();
  }
  LivenessMessage message{LivenessMessage::kFailure, 0, {5, text, {1, 2}}}, again;
  LivenessPlace place{0, 1, 0};
  std::string bytes = pack(message, place, key);
  if (unpack(&bytes, 8, &place, key, &again) != Unpacked::kWhole || !bytes.empty()) __builtin_trap();
  if (again.failure.text != text.substr(0, again.failure.text.size())) __builtin_trap();
  return 0;
}
