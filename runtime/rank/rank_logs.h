// RankLogs: the files to which one rank's output goes (runtime/record/run_dir.h).
//
// rank_<g>.out and .err get the bytes as they are, once; rank_<g>.times says when each piece came (output_marks.h), so that
// views can put the lines of all ranks in order. <node>.log, which the ranks of a node share, gets only what the
// supervisors themselves have to say, each line with one O_APPEND write. None is there before its first byte, so that ranks
// that say nothing make no files; the three of a rank come together.
//
// A rank's output has a limit. The files are cut into segments of a quarter of it; of more than four, the first and the newest
// three are kept, and what is taken away is counted. Nothing here fails: what a full or missing disk does not take is counted,
// too, and both are told once at the end. Secrets are taken out first (redaction.h).
//
// Thread rule: thread-compatible.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/contract/rank_env.h"
#include "runtime/rank/redaction.h"
#include "runtime/record/node_lines.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

enum class Stream { kOut = 0, kErr = 1 };

class RankLogs {
 public:
  // Opens the files of env's attempt with the first byte for them, creating its folder if it is missing. They take at most
  // `limit_bytes` of disk, but for one piece of write() each; 0: any number.
  RankLogs(const record::RunDir& run_dir, const contract::RankEnv& env, const std::vector<Secret>& secrets,
           int64_t limit_bytes);

  void write(Stream stream, std::string_view bytes);
  // Writes a line of our own to the node log: "<time> <node>:<rank> shardrun: <text>".
  void note(std::string_view text);
  // Ends both streams; tells the node log and stderr what was not kept.
  void finish();

  // Returns what was not kept of the output so far, and why, in words; "" when all was.
  std::string losses() const;
  // Returns the last line of the rank's stderr that has a letter or digit, escaped, at most 500 bytes.
  std::string last_words() const;

 private:
  struct Lost {
    uint64_t lines = 0, bytes = 0;
    int error_number = 0;
  };
  void write_redacted(Stream stream, std::string_view bytes);
  int64_t write_file(int fd, std::string_view bytes);
  void write_times(std::string line);
  void begin_segment();
  void drop_segment(int segment);

  record::RunDir run_dir_;
  contract::RankEnv env_;
  int64_t limit_bytes_;
  base::UniqueFd node_;
  // The segment that is written: its files, and their sizes.
  int segment_ = -1;
  std::array<base::UniqueFd, 2> streams_;
  base::UniqueFd times_;
  std::array<int64_t, 2> sizes_{};
  int64_t times_bytes_ = 0;
  bool torn_ = false;                   // the last line of times_ lacks its end
  std::vector<int64_t> segment_bytes_;  // of output in each segment before it
  int64_t bytes_before_ = 0, cut_ = 0;  // output in them, and what of it was taken away
  std::array<Redactor, 2> redactors_;
  record::NodeLines error_lines_;
  std::string last_error_line_;
  Lost lost_;
};

}  // namespace shardrun::rank
