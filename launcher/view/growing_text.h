// GrowingText: files that others append to, read piece by piece; and what stands last in one.
//
// Thread rule: thread-compatible; last_line is a free function for any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shardrun::launcher {

class GrowingText {
 public:
  static constexpr int64_t kAll = INT64_MAX;

  // Returns the bytes of `path` since the last call, at most `limit_bytes` of them, up to the last newline unless that is the
  // end and `to_the_end`; "" when there are none, or when it cannot be read. A line of more than the limit comes in pieces.
  std::string take_new(const std::string& path, bool to_the_end, int64_t limit_bytes = kAll);
  // Call it before the first take_new of `path`: skips all but about its last `bytes`, starting at the beginning of
  // a line.
  void skip_to_last(const std::string& path, int64_t bytes);

 private:
  std::map<std::string, int64_t> offsets_;
};

// Returns the last line of a file that is not empty, from its last 4 KiB, as `logs` would show it: a carriage return ends a line. One
// without its end counts where there is no other. "" when there is none, or when it cannot be read.
std::string last_line(const std::string& path);

}  // namespace shardrun::launcher
