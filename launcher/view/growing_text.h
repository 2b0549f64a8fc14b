// GrowingText: files that others append to, read piece by piece.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shardrun::launcher {

class GrowingText {
 public:
  // Returns the bytes of `path` since the last call, up to the last newline unless `to_the_end`; "" when it cannot
  // be read.
  std::string take_new(const std::string& path, bool to_the_end);
  // Call it before the first take_new of `path`: skips all but about its last `bytes`, starting at the beginning of
  // a line.
  void skip_to_last(const std::string& path, int64_t bytes);

 private:
  std::map<std::string, int64_t> offsets_;
};

}  // namespace shardrun::launcher
