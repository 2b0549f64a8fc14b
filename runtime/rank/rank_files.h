// RankFiles: the files to which one rank's output goes (runtime/record/run_dir.h).
//
// rank_<g>.out and .err get the bytes as they are, once; rank_<g>.times says when each piece came (output_marks.h), so that
// views can put the lines of all ranks in order. <node>.log, which the ranks of a node share, gets only what the
// supervisors themselves have to say, each line with one O_APPEND write. None is there before its first byte, so that ranks
// that say nothing make no files; the three of a rank come together.
//
// A rank's output has a limit. The files are cut into segments of a quarter of it; of more than four, the first and the newest
// three are kept, and what is taken away is counted. Nothing here fails: what a full or missing disk does not take is counted,
// too.
//
// Thread rule: thread-compatible; each call takes as long as the disk does.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

enum class Stream { kOut = 0, kErr = 1 };

class RankFiles {
 public:
  // Opens the files of env's attempt with the first byte for them, creating its folder if it is missing. They take at most
  // `limit_bytes` of disk, but for one piece of write() each; 0: any number.
  RankFiles(const record::RunDir& run_dir, const contract::RankEnv& env, int64_t limit_bytes)
      : run_dir_(run_dir), env_(env), limit_bytes_(limit_bytes) {}

  // Writes what came at a moment, in milliseconds since 1970.
  void write(Stream stream, std::string_view bytes, int64_t unix_milliseconds);
  // Writes a whole line to the node log.
  void note(std::string_view line);

  // Returns what was not kept of the output so far, and why, in words; "" when all was.
  std::string losses() const;

 private:
  struct Lost {
    uint64_t lines = 0, bytes = 0;
    int error_number = 0;
  };
  int64_t write_file(int fd, std::string_view bytes);
  void write_times(std::string line);
  void begin_segment(int64_t unix_milliseconds);
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
  Lost lost_;
};

}  // namespace shardrun::rank
