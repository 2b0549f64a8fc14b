#include "launcher/view/growing_text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runtime/base/io.h"
#include "runtime/record/node_lines.h"

namespace shardrun::launcher {

std::string GrowingText::take_new(const std::string& path, bool to_the_end, int64_t limit_bytes) {
  const auto fd = base::open_to_read(path);
  if (!fd) return "";
  int64_t& offset = offsets_[path];
  std::string text;
  std::array<char, 65536> chunk;
  ssize_t got = 0;
  const auto left = [&] { return limit_bytes - static_cast<int64_t>(text.size()); };
  while (left() > 0 && (got = ::pread(fd->get(), chunk.data(), std::min<int64_t>(left(), chunk.size()),
                                      offset + static_cast<int64_t>(text.size()))) > 0) {
    text.append(chunk.data(), got);
  }
  const size_t newline = text.rfind('\n');
  const bool full = left() <= 0;
  if (newline == std::string::npos ? !full && !to_the_end : full || !to_the_end)
    text.resize(newline == std::string::npos ? 0 : newline + 1);
  offset += static_cast<int64_t>(text.size());
  return text;
}

void GrowingText::skip_to_last(const std::string& path, int64_t bytes) {
  struct stat status {};
  if (offsets_.count(path) != 0 || ::stat(path.c_str(), &status) != 0 || status.st_size <= bytes) return;
  offsets_[path] = status.st_size - bytes;
  const std::string text = take_new(path, /*to_the_end=*/false);
  const size_t newline = text.find('\n');
  offsets_[path] =
      status.st_size - bytes + static_cast<int64_t>(newline == std::string::npos ? 0 : newline + 1);
}

std::string last_line(const std::string& path) {
  const auto fd = base::open_to_read(path);
  struct stat status {};
  if (!fd || ::fstat(fd->get(), &status) != 0) return "";
  std::array<char, 4096> tail;
  const int64_t begin = std::max<int64_t>(0, status.st_size - static_cast<int64_t>(tail.size()));
  const ssize_t got = ::pread(fd->get(), tail.data(), tail.size(), begin);
  if (got <= 0) return "";
  std::string last;
  record::NodeLines lines;
  lines.append(std::string_view(tail.data(), static_cast<size_t>(got)), [&](std::string_view line) {
    if (!line.empty()) last = line;
  });
  return last.empty() ? std::string(lines.pending()) : last;
}

}  // namespace shardrun::launcher
