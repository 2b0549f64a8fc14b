// Store: checkpoints on a file system that all ranks share.
//
// Saving, so that a reader sees a whole checkpoint or none whatever dies when:
//   every rank  write_shard   step_<n>.tmp/shard_<rank>.bin, fsync of file and folder
//   (all ranks agree that every one succeeded: the caller's reduction)
//   rank 0      publish       manifest.json written and fsynced in step_<n>.tmp/, the folder renamed to step_<n>,
//                             its parent fsynced, then `latest` replaced, then checkpoints beyond `keep` and
//                             left-over .tmp folders removed
// Loading: steps() lists complete checkpoints, newest first; the caller tries them in that order with
// read_manifest and read_shard, which verify every checksum, and falls back to the next on kCorrupt or
// kNotFound. Any number of ranks may read what any other number wrote.
//
// Thread rule: thread-compatible; ranks call concurrently as described above.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/format.h"
#include "runtime/shard/layout.h"

namespace shardrun::checkpoint {

// A rank's flat shards (runtime/shard/layout.h), each layout.flat_shard_elements long.
struct ShardState {
  std::span<float> master, moment1, moment2;
};

class Store {
 public:
  // `keep` newest checkpoints survive a publish; at least 1.
  Store(std::string directory, int keep) : directory_(std::move(directory)), keep_(keep < 1 ? 1 : keep) {}

  const std::string& directory() const { return directory_; }
  std::string path_of(int64_t step) const { return directory_ + "/" + step_name(step); }

  // Errors: kIo naming the file.
  Result<void> write_shard(int64_t step, const shard::ShardLayout& layout, int rank,
                           const ShardState& state) const;
  // kNotFound when a rank's file is not visible here (the folder is not shared between the nodes); kIo
  // otherwise. Failing to remove old checkpoints is not an error: the new one is safe.
  Result<void> publish(const Manifest& manifest) const;

  // Steps of the complete checkpoints, newest first; empty when the folder does not exist.
  Result<std::vector<int64_t>> steps() const;
  // kNotFound, kCorrupt or kUnsupported, naming the file.
  Result<Manifest> read_manifest(int64_t step) const;
  // Fills the owned elements of `state`; padding is left alone. kNotFound and kCorrupt name file and block.
  Result<void> read_shard(const Manifest& manifest, const shard::ShardLayout& layout, int rank,
                          const ShardState& state) const;

 private:
  Result<void> read_file_of(const Manifest& manifest, int file_rank, const shard::ShardLayout& layout,
                            int rank, const ShardState& state, std::vector<int64_t>& filled) const;
  void prune(int64_t newest) const;

  std::string directory_;
  int keep_;
};

}  // namespace shardrun::checkpoint
