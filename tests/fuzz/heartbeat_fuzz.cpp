// Runs libFuzzer over the lines that come to the conductor's port and from it, and over watch.json. What is
// accepted must come back the same from the line that we would write for it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/contract/heartbeat.h"

using namespace shardrun::contract;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto beat = parse_beat(text)) {
    const auto again = parse_beat(to_line(*beat));
    SHARDRUN_CHECK(again && again->sequence == beat->sequence && again->phase == beat->phase &&
                   again->step == beat->step && again->state == beat->state);
  }
  if (const auto hello = parse_hello(text)) {
    const auto again = parse_hello(to_line(*hello));
    SHARDRUN_CHECK(again && again->token == hello->token && again->global_rank == hello->global_rank &&
                   again->node == hello->node);
  }
  if (const auto sight = parse_rank_sight(text)) {
    const auto again = parse_rank_sight(to_line(*sight));
    SHARDRUN_CHECK(again && again->global_rank == sight->global_rank && again->node == sight->node &&
                   again->beat.resident_bytes == sight->beat.resident_bytes);
  }
  if (const auto token = parse_look(text)) SHARDRUN_CHECK(parse_look(look_line(*token)) == token);
  (void)parse_watch_place(text);
  return 0;
}
