// RankLogs: the three files to which one rank's output goes (runtime/record/run_dir.h).
//
// rank_<g>.out and .err get the bytes as they are; <node>.log gets lines (node_lines.h), each with one O_APPEND
// write, so that the ranks of a node share it without tearing lines. Nothing here fails: what a full or missing
// disk does not take is counted and reported once at the end. Secrets are taken out first (redaction.h).
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
#include "runtime/rank/node_lines.h"
#include "runtime/rank/redaction.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {

enum class Stream { kOut = 0, kErr = 1 };

class RankLogs {
 public:
  // Opens the files of env's attempt, creating its folder if it is missing.
  RankLogs(const record::RunDir& run_dir, const contract::RankEnv& env, const std::vector<Secret>& secrets);

  void write(Stream stream, std::string_view bytes);
  // Writes a line of our own to the node log: "<time> <node>:<rank> shardrun: <text>".
  void note(std::string_view text);
  // Ends both streams; reports lost lines to the node log and to stderr.
  void finish();

  // Returns the last line of the rank's stderr that has a letter or digit, escaped, at most 500 bytes.
  std::string last_words() const;

 private:
  struct Lost {
    uint64_t lines = 0;  // lines of the node log
    uint64_t bytes = 0;  // bytes of the raw files
    int error_number = 0;
  };
  void write_redacted(Stream stream, std::string_view bytes);
  void write_node_line(std::string_view text, std::chrono::system_clock::time_point time);
  bool write_file(int fd, std::string_view bytes);

  std::array<base::UniqueFd, 2> raw_;
  base::UniqueFd node_;
  std::array<Redactor, 2> redactors_;
  std::array<NodeLines, 2> lines_;
  std::string prefix_;  // "<node>:<global rank> "
  std::string last_error_line_;
  Lost lost_;
};

}  // namespace shardrun::rank
