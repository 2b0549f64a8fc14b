// Text that looks like language and repeats: enough for a model of a few layers to learn from.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/counter_random.h"

namespace shardrun::tests {

// Returns the same sentences for the same chapter, on every machine.
inline std::string prose(int sentences, uint64_t chapter) {
  const char* const who[] = {"the rank", "a node", "the launcher", "one shard", "the master"};
  const char* const does[] = {"sends", "keeps", "waits for", "reads", "sums"};
  const char* const what[] = {"its gradient", "every block", "the next step", "a checkpoint", "the loss"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    const uint64_t bits = base::random_bits(chapter, static_cast<uint64_t>(i));
    text.append(who[bits % 5]).append(" ").append(does[bits / 5 % 5]).append(" ");
    text.append(what[bits / 25 % 5]).append(".\n");
  }
  return text;
}

}  // namespace shardrun::tests
