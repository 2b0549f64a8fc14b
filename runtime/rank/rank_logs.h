// RankLogs: takes one rank's output, without its secrets (redaction.h), and has a thread file it (rank_files.h).
//
// A file server that does not answer for a while, as during its failover, keeps whoever writes; the supervisor has heartbeats to
// send and orders to hear meanwhile. What waits for the thread is limited: has_room() says whether more should be read from the
// rank, whose own writes wait when its pipe is full.
//
// What was not kept is told once, at the end.
//
// Thread rule: one thread calls.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/contract/rank_env.h"
#include "runtime/rank/rank_files.h"
#include "runtime/rank/redaction.h"
#include "runtime/record/node_lines.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

class RankLogs {
 public:
  RankLogs(const record::RunDir& run_dir, const contract::RankEnv& env, const std::vector<Secret>& secrets,
           int64_t limit_bytes);
  RankLogs(const RankLogs&) = delete;
  ~RankLogs();

  void write(Stream stream, std::string_view bytes);
  // Writes a line of our own to the node log: "<time> <node>:<rank> shardrun: <text>".
  void note(std::string_view text);
  // Ends both streams; waits until all is filed; tells the node log and stderr what was not kept.
  void finish();

  // Whether what waits to be filed is less than kWaitingBytes; room_fd() becomes readable when it is again.
  bool has_room();
  int room_fd() const { return room_.get(); }

  // Returns what was not kept of the output so far, and why, in words; "" when all was. Waits for what is not filed yet, but
  // no longer than `patience`.
  std::string losses(std::chrono::milliseconds patience);
  // Returns the last line of the rank's stderr that has a letter or digit, escaped, at most 500 bytes.
  std::string last_words() const;

 private:
  static constexpr size_t kWaitingBytes = size_t{1} << 20;
  struct Piece {
    std::optional<Stream> stream;  // absent: a line for the node log
    std::string bytes;
    int64_t unix_milliseconds = 0;
  };
  void add(Piece piece);
  void write_clean(Stream stream, std::string_view bytes);
  void file(const Piece& piece);
  void file_until_stopped();

  contract::RankEnv env_;
  std::array<Redactor, 2> redactors_;
  record::NodeLines error_lines_;
  std::string last_error_line_;
  base::UniqueFd room_;

  std::mutex mutex_;  // guards what follows but the files; the thread does not hold it while it files
  std::condition_variable changed_;
  std::vector<Piece> waiting_;
  size_t waiting_bytes_ = 0;  // of the pieces that are not filed yet
  bool is_filing_ = false;
  bool stops_ = false;
  std::string losses_;
  RankFiles files_;  // the thread's, where there is one
  std::thread thread_;
};

}  // namespace shardrun::rank
