// Runs libFuzzer over what comes over a liveness link: nothing that was not packed with the job's key is ever read, and what
// was comes back the same.
#include <cstddef>
#include <cstdint>
#include <string>

#include "plugins/ofi/liveness_message.h"

using namespace shardrun::ofi;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const shardrun::common::KeyedHash key{{1}};
  const std::string text(reinterpret_cast<const char*>(data), size);
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
