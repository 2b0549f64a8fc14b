// Store: checkpoints on a file system that all ranks share.
//
// How saving works, so that a reader sees a whole checkpoint or none, whatever dies when:
//   every rank  write_shard   step_<n>.tmp/shard_<file>.bin, fsync of file and folder
//   (all ranks agree that every one succeeded: the caller's reduction)
//   rank 0      publish       manifest.json written and fsynced in step_<n>.tmp/, the folder renamed to step_<n>,
//                             its parent fsynced, then `latest` replaced, and `best` where the manifest says so, then older
//                             checkpoints beyond `keep` and left-over .tmp folders removed
// BackgroundSaver does the same while training runs. Loading: steps() lists complete checkpoints, newest first; the
// caller tries them in that order with read_manifest and read_shard, which verify every checksum, and falls back to
// the next on kCorrupt alone: what could not be read, or is not there, is not proven to be damaged. Any number of
// ranks, shard degree and tensor parallelism may read what any other wrote.
//
// Thread rule: thread-compatible; ranks call concurrently as described above.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/checkpoint/manifest.h"
#include "runtime/trainer/checkpoint/shard_file.h"
#include "runtime/trainer/model/model.h"

namespace shardrun::checkpoint {

// What a rank wants: its shard of its local blocks, or of that what it would write as one of several replicas.
struct LoadTarget {
  std::span<const model::BlockLayout> blocks;  // those of this tensor rank
  const plan::ShardLayout& layout;             // how these blocks are sharded over the shard group
  int shard_rank = 0;
  int replica_rank = 0, replicas = 1;
};

class Store {
 public:
  // The `keep` newest checkpoints up to the published one survive a publish, all later ones, and the one that `best` names; `keep`
  // is at least 1.
  Store(std::string directory, int keep) : directory_(std::move(directory)), keep_(keep < 1 ? 1 : keep) {}
  // Does the same, but writes in `stage`, a folder inside the directory that somebody else has made and that is
  // removed when another writer takes over; then nothing of this writer is published any more (kRefused), and it removes
  // nothing. `epoch` is written into the manifests.
  Store(std::string directory, int keep, std::string stage, int epoch)
      : directory_(std::move(directory)),
        keep_(keep < 1 ? 1 : keep),
        stage_(std::move(stage)),
        epoch_(epoch) {}

  const std::string& directory() const { return directory_; }
  std::string path_of(int64_t step) const { return directory_ + "/" + step_name(step); }
  // Returns the folder in which the files of a checkpoint lie until it is published.
  std::string unpublished_path_of(int64_t step) const;

  // Makes that folder; succeeds when it exists. kRefused when the stage is gone; kIo.
  Result<void> make_unpublished(int64_t step) const;

  // Removes that folder with what is in it, where there is one. No rank may write there any more.
  void discard_unpublished(int64_t step) const;

  // Errors: kIo naming the file; those of make_unpublished.
  Result<void> write_shard(int64_t step, const Place& place, const plan::ShardLayout& layout,
                           const ShardState& state) const;
  // kNotFound when a rank's file is not visible here (the folder is not shared between the nodes); kIo otherwise.
  // Failing to remove old checkpoints is not an error: the new one is safe.
  Result<void> publish(const Manifest& manifest) const;

  // Returns the step that `best` names; nullopt where no complete checkpoint is called so.
  std::optional<int64_t> best() const;
  // Returns the steps of the complete checkpoints, newest first; empty when the folder does not exist.
  Result<std::vector<int64_t>> steps() const;
  // kNotFound, kIo, kCorrupt or kUnsupported, naming the file.
  Result<Manifest> read_manifest(int64_t step) const;
  // Fills the wanted elements of `state`; leaves all others alone and skips a tensor without memory. Opens only files
  // that hold something of it. kNotFound, kIo and kCorrupt name file and block; `state` is worthless then. kInvalid when
  // the blocks have other tensors.
  Result<void> read_shard(const Manifest& manifest, const LoadTarget& target, const ShardState& state) const;
  // Reads the master weights of one whole block, its tensors one behind the other; `full` has full_elements().
  // Errors as above.
  Result<void> read_block(const Manifest& manifest, int block, std::span<float> full) const;

 private:
  Result<void> point(const char* name, int64_t step) const;
  Result<void> point_to_best(const BestLoss& best) const;
  void prune(int64_t newest) const;
  void remove_checkpoint(int64_t step) const;
  int replace_checkpoint(const std::string& folder, int64_t step) const;
  std::string condemned_path_of(int64_t step) const;
  Result<void> check_stage() const;

  std::string directory_;
  int keep_;
  std::string stage_;  // empty: it is beside the complete checkpoints
  int epoch_ = 0;
};

}  // namespace shardrun::checkpoint
