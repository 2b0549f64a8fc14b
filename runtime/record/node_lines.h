// NodeLines: turns the bytes that a rank wrote into lines, as people read them.
//
// A carriage return ends a line as a newline does, so that progress bars become lines; empty pieces before one are
// dropped. A line longer than kMaxLineBytes is split: the piece ends with " [...]" and the next one starts with
// "[...] ". Who shows a line makes it safe (runtime/base/visible.h).
//
// Thread rule: thread-compatible; pure apart from the buffer.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace shardrun::record {

inline constexpr size_t kMaxLineBytes = 4096;

class NodeLines {
 public:
  // Receives each finished line's text, not yet escaped, without its end.
  using Sink = std::function<void(std::string_view text)>;

  void append(std::string_view bytes, const Sink& sink);
  // Ends the stream: what is left is a line even without a newline.
  void finish(const Sink& sink);
  // Returns the start of a line whose end has not come yet.
  std::string_view pending() const { return line_; }

 private:
  void add(std::string_view piece, const Sink& sink);
  void end_line(char end, const Sink& sink);

  std::string line_;
  bool after_return_ = false;
};

// Returns a time such as "2026-01-02T03:04:05.678Z".
std::string format_utc(std::chrono::system_clock::time_point time);

}  // namespace shardrun::record
