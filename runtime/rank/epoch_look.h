// EpochLook: asks whether an attempt is still the newest of its run, without waiting for a file server.
//
// A process of its own reads the file, for a read from a server that is gone may never come back.
//
// Thread rule: thread-compatible; start() forks, so the process has one thread.
#pragma once

#include <optional>

#include "runtime/base/io.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

class EpochLook {
 public:
  // Returns nullopt when no process can be started.
  static std::optional<EpochLook> start(const record::RunDir& run, int attempt);

  enum class Answer { kNone, kOurs, kTaken, kUnreadable };
  // Does not wait; kNone means not yet.
  Answer answer() const;

 private:
  explicit EpochLook(base::UniqueFd reads) : reads_(std::move(reads)) {}
  base::UniqueFd reads_;  // one byte comes; the end of the stream without it is kUnreadable
};

}  // namespace shardrun::rank
