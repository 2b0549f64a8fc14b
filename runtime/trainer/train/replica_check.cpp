#include "runtime/trainer/train/replica_check.h"

#include <algorithm>
#include <cstddef>

namespace shardrun::train {

ReplicaDifference compare_hashes(std::span<const uint64_t> hashes, int replicas, int stages) {
  ReplicaDifference difference;
  difference.is_certain = true;
  const auto shards = static_cast<int>(hashes.size()) / replicas / stages;  // of a stage
  for (int number = 0; number < shards * stages; ++number) {
    const int first = number / shards * shards * replicas + number % shards;  // rank with this shard
    std::vector<uint64_t> copies;
    for (int replica = 0; replica < replicas; ++replica) copies.push_back(hashes[first + replica * shards]);
    const auto count = [&](uint64_t hash) { return std::count(copies.begin(), copies.end(), hash); };
    const auto usual = *std::max_element(copies.begin(), copies.end(),
                                         [&](uint64_t a, uint64_t b) { return count(a) < count(b); });
    if (count(usual) == replicas) continue;
    const bool most_agree = 2 * count(usual) > replicas;
    difference.is_certain = difference.is_certain && most_agree;
    for (int replica = 0; replica < replicas; ++replica)
      if (!most_agree || copies[replica] != usual) difference.ranks.push_back(first + replica * shards);
  }
  std::sort(difference.ranks.begin(), difference.ranks.end());
  return difference;
}

}  // namespace shardrun::train
