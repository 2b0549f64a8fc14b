// EpochLook: asks whether an attempt is still the newest of its run, and where its conductor listens now, without waiting for
// a file server.
//
// A process of its own reads the files, for a read from a server that is gone may never come back.
//
// Thread rule: thread-compatible; start() forks, so the process has one thread.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "runtime/base/io.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

class EpochLook {
 public:
  // Returns nullopt when no process can be started.
  static std::optional<EpochLook> start(const record::RunDir& run, int attempt);

  enum class Answer { kNone, kOurs, kTaken, kUnreadable };
  // Does not wait; kNone means not yet. Any other answer is given once.
  Answer answer();
  // The text of the attempt's watch.json, after kOurs; empty when it could not be read.
  const std::string& watch_json() const { return watch_json_; }

 private:
  explicit EpochLook(base::UniqueFd reads) : reads_(std::move(reads)) {}
  base::UniqueFd
      reads_;  // a byte comes, with the text behind it; the end of the stream without it is kUnreadable
  std::string watch_json_;
};

}  // namespace shardrun::rank
