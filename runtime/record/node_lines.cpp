#include "runtime/record/node_lines.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/unix_time.h"

namespace shardrun::record {
namespace {

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

}  // namespace

void NodeLines::append(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    add(bytes.substr(0, end), sink);
    if (end == std::string_view::npos) return;
    end_line(bytes[end], sink);
    bytes.remove_prefix(end + 1);
  }
}

void NodeLines::add(std::string_view piece, const Sink& sink) {
  if (!piece.empty()) after_return_ = false;
  while (line_.size() + piece.size() > kMaxLineBytes) {
    const size_t taken = kMaxLineBytes - line_.size();
    line_.append(piece.substr(0, taken));
    piece.remove_prefix(taken);
    // Do not cut a UTF-8 sequence in two, of which an earlier piece may have brought the first bytes.
    size_t end = line_.size();
    for (size_t back = 0; back < 4; ++back) {
      if (is_continuation(back == 0 ? piece[0] : line_[line_.size() - back])) continue;
      end -= back;
      break;
    }
    const std::string begun = line_.substr(end);
    line_.resize(end);
    sink(line_ + " [...]");
    line_ = "[...] " + begun;
  }
  line_.append(piece);
}

void NodeLines::end_line(char end, const Sink& sink) {
  const bool empty = line_.empty();
  const bool second_half_of_crlf = end == '\n' && after_return_ && empty;
  if (!second_half_of_crlf && !(end == '\r' && empty)) sink(line_);
  after_return_ = end == '\r' && !empty;
  line_.clear();
}

void NodeLines::finish(const Sink& sink) {
  if (!line_.empty()) sink(line_);
  line_.clear();
  after_return_ = false;
}

std::string format_utc(std::chrono::system_clock::time_point time) {
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{}.{:03}Z",
                     base::utc_text(static_cast<double>(milliseconds / 1000), "%Y-%m-%dT%H:%M:%S"),
                     milliseconds % 1000);
}

}  // namespace shardrun::record
