// Runs libFuzzer over the lines that come to the conductor's port and from it, their seals, and watch.json. What is
// accepted must come back the same from the line that we would write for it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/sealed_lines.h"

using namespace shardrun::contract;

namespace {

// Whatever comes as an opening or a sealed line is refused, but for the one that the other side made.
void check_sealed(std::string_view text) {
  const shardrun::common::Key key{1}, nonce{2}, other{3};
  SealedLines server(SealedLines::Side::kServer, key, nonce), client(SealedLines::Side::kClient, key, other);
  (void)server.take_opening(text);
  SHARDRUN_CHECK(server.take_opening(client.opening()) && client.take_opening(server.opening()));
  SHARDRUN_CHECK(!server.unseal(text) && !client.unseal(text));
  const std::string sealed = client.seal(text);
  SHARDRUN_CHECK(!client.unseal(sealed));
  SHARDRUN_CHECK(server.unseal(sealed) == text && !server.unseal(sealed));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto beat = parse_beat(text)) {
    const auto again = parse_beat(to_line(*beat));
    SHARDRUN_CHECK(again && again->sequence == beat->sequence && again->phase == beat->phase &&
                   again->step == beat->step && again->state == beat->state);
  }
  if (const auto hello = parse_hello(text)) {
    const auto again = parse_hello(to_line(*hello));
    SHARDRUN_CHECK(again && again->global_rank == hello->global_rank && again->node == hello->node);
  }
  if (const auto words = parse_rank_words(text)) {
    const auto again = parse_rank_words(to_line(*words));
    SHARDRUN_CHECK(again && !words->empty() && again->size() == words->size());
    for (size_t i = 0; i < words->size(); ++i) {
      const RankWord &word = (*words)[i], &same = (*again)[i];
      SHARDRUN_CHECK(same.global_rank == word.global_rank && same.beat.has_value() == word.beat.has_value() &&
                     (!word.beat || same.beat->sequence == word.beat->sequence));
    }
  }
  if (const auto sight = parse_rank_sight(text)) {
    const auto again = parse_rank_sight(to_line(*sight));
    SHARDRUN_CHECK(again && again->global_rank == sight->global_rank && again->node == sight->node &&
                   again->beat.resident_bytes == sight->beat.resident_bytes);
  }
  (void)parse_watch_place(text);
  check_sealed(text);
  return 0;
}
