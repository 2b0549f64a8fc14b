// One file of a checkpoint, written and read in chunks.
//
// ShardFileWriter separates taking values (take and stage touch the caller's memory) from writing them (write and
// finish touch only the file), so that BackgroundSaver can put a lock around the first and not wait for a disk. The
// header is written last: a file that was not finished has no magic.
//
// Thread rule: thread-compatible, but take() and stage() may run on another thread than write(), never at the
// same time as each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/checkpoint/format.h"
#include "runtime/trainer/checkpoint/manifest.h"

namespace shardrun::checkpoint {

// Is called with values that were read or written and are not needed soon, so that those in files can leave memory.
// Null if nobody needs to know.
using GiveBack = std::function<void(std::span<const float>)>;

// Copies values to the host. Null if they lie in host memory.
using ReadValues = std::function<Result<void>(std::span<const float>, float*)>;

// A rank's flat shards (runtime/plan/shard_layout.h), each layout.flat_shard_elements long.
struct ShardState {
  std::span<float> master, moment1, moment2;
  GiveBack give_back{};
  ReadValues read{};  // for writing checkpoints; when they are read, the shards lie in host memory

  std::array<std::span<float>, 3> tensors() const { return {master, moment1, moment2}; }
};

class ShardFileWriter {
 public:
  static constexpr size_t kChunkElements = plan::kCheckpointChunk;

  // The constructor touches nothing yet. `layout` is that of the writer's local blocks over
  // place.spread.shard_degree ranks. `state` must not change until everything was taken or staged.
  ShardFileWriter(std::string folder, int64_t step, const Place& place, const plan::ShardLayout& layout,
                  const ShardState& state);

  // Creates the file; the folder exists already (Store::make_unpublished).
  Result<void> open();

  // A piece of one tensor of one block, copied out of the state.
  struct Chunk {
    size_t block = 0, tensor = 0;
    uint64_t file_offset = 0;
    size_t elements = 0;
  };
  // Copies the next values, at most buffer.size(), to buffer's front; returns nullopt when all were taken.
  std::optional<Chunk> take(std::span<float> buffer);
  // Copies all that was not taken yet into `memory` (plan::staging_elements() suffice), which then belongs to the writer
  // until finish(); afterwards `state` may change. Returns how many bytes that was; nullopt when it does not fit, and then
  // nothing was copied. Call it once. Runs, and calls give_back, on the caller's OpenMP threads.
  std::optional<uint64_t> stage(std::span<float> memory);
  bool all_taken() const { return next_ == pieces_.size(); }

  // Writes chunks in the order of take().
  Result<void> write(const Chunk& chunk, std::span<const float> values);
  // Closes the file, on the thread that opened it; finish() does so, too. What was written stays.
  void close() { fd_.reset(); }
  // Writes the header and waits until file and folder are on the disk. Also fails when values could not be read.
  Result<void> finish();

 private:
  void copy_out(std::span<const float> values, float* to);

  struct Piece {
    size_t block, tensor;
    std::span<const float> values;  // those not taken yet
    uint64_t file_offset;           // where values[0] goes
  };

  std::string folder_, path_;
  ShardHeader header_;
  std::vector<Piece> pieces_;
  GiveBack give_back_;
  ReadValues read_;
  std::optional<base::Error> failure_;  // the first failure of read_
  size_t next_ = 0;
  bool is_staged_ = false;
  base::UniqueFd fd_;
};

// An opened file whose header is checked.
class ShardFileReader {
 public:
  // kNotFound, kIo, kCorrupt or kUnsupported, naming the file. It must be file number `file` of `manifest`.
  static Result<ShardFileReader> open(const std::string& folder, const Manifest& manifest, int file);

  const BlockRecord& block(size_t index) const { return header_.blocks[index]; }
  // Calls `use` with consecutive pieces of tensor 0, 1 or 2 of a block; `first` counts from the local block's
  // start. kCorrupt when the checksum does not match: then what `use` was given is worthless.
  template <typename Use>
  Result<void> read(size_t block_index, size_t tensor, const Use& use) {
    uint32_t checksum = 0;
    const auto count = static_cast<int64_t>(block(block_index).count());
    for (int64_t done = 0; done < count;) {
      ASSIGN_OR_RETURN(auto values, read_chunk(block_index, tensor, done, checksum));
      use(static_cast<int64_t>(block(block_index).begin) + done, values);
      done += static_cast<int64_t>(values.size());
    }
    return check(block_index, tensor, checksum);
  }

 private:
  ShardFileReader(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Result<void> read_header(const Manifest& manifest, int file);
  Result<std::span<const float>> read_chunk(size_t block_index, size_t tensor, int64_t done,
                                            uint32_t& checksum);
  Result<void> check(size_t block_index, size_t tensor, uint32_t checksum) const;

  std::string path_;
  base::UniqueFd fd_;
  ShardHeader header_;
  std::vector<float> buffer_;
};

}  // namespace shardrun::checkpoint
