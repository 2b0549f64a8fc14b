// EpochLook: asks whether an attempt is still the newest of its run, and where its conductor listens now, without waiting for
// a file server.
//
// A process of its own reads the files, for a read from a server that is gone may never come back.
//
// Thread rule: thread-compatible; start() forks, so the process has one thread.
#pragma once

#include <sys/types.h>

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
  // The text of the attempt's watch.json, after kOurs, empty when it could not be read; after kUnreadable what was wrong.
  const std::string& text() const { return text_; }
  // The reading process has not got a CPU yet, or not long enough: no file server keeps it.
  bool wants_cpu() const;

 private:
  EpochLook(pid_t reader, base::UniqueFd reads) : reader_(reader), reads_(std::move(reads)) {}
  pid_t reader_;
  base::UniqueFd
      reads_;  // a byte comes, with the text behind it; the end of the stream without it is kUnreadable
  std::string text_;
};

}  // namespace shardrun::rank
