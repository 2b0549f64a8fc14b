// say(): words for people that must neither end nor hold up who says them.
//
// Thread rule: thread-safe; the lines of two threads are not mixed up to 4096 bytes.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace shardrun::base {

// Writes the text to a terminal, a pipe or a file. What cannot be written is lost without a word: the reader of a pipe is
// gone, the disk is full, or nobody has read for `patience` and, meanwhile, `gives_up` (may be empty) returned true.
// Sends no SIGPIPE.
void say(int fd, std::string_view text, std::chrono::milliseconds patience = std::chrono::seconds(2),
         const std::function<bool()>& gives_up = {});

// While it lives, this thread gets no SIGPIPE: writing to a pipe that nobody reads fails with EPIPE alone.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal();
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  ~NoBrokenPipeSignal();

 private:
  bool blocks_ = false;  // it was neither blocked nor waiting before
};

}  // namespace shardrun::base
