#include "launcher/view/growing_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "runtime/base/io.h"

namespace shardrun::launcher {

std::string GrowingText::take_new(const std::string& path, bool to_the_end) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  int64_t& offset = offsets_[path];
  std::string text;
  std::array<char, 65536> chunk;
  ssize_t got = 0;
  while ((got = ::pread(fd.get(), chunk.data(), chunk.size(), offset + static_cast<int64_t>(text.size()))) >
         0) {
    text.append(chunk.data(), got);
  }
  if (!to_the_end) text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
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

}  // namespace shardrun::launcher
