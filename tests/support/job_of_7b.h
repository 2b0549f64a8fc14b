// A job spec that several tests of predictions take: Llama-2 7B on p4de, as far as a number of nodes and [batch] leave it open.
#pragma once

#include <string>

#include <fmt/format.h>

namespace shardrun::tests {

// `batch` is what stands in [batch], and may begin further sections.
inline std::string job_of_7b(int nodes, const std::string& batch) {
  return fmt::format(R"(name = "seven"
[resources]
nodes = {}
[cluster]
scheduler = "local"
instance = "p4de.24xlarge"
[program]
trainer = "llama"
[model]
preset = "llama-2-7b"
[data]
files = ["train.tokens"]
sequence_length = 4096
[sharding]
strategy = "hybrid_shard"
[batch]
{}
)",
                     nodes, batch);
}

}  // namespace shardrun::tests
