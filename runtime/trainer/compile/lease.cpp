#include "runtime/trainer/compile/lease.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Result;
using base::UniqueFd;

// The file's own text, e.g. that of /proc/sys/kernel/random/boot_id, without its newline.
std::string first_line(const char* path) {
  const auto text = base::read_file(path, 4096);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

// When the process began, in ticks after boot, or nothing when there is none.
std::optional<std::string> start_of_process(long pid) {
  const auto stat = base::read_file(fmt::format("/proc/{}/stat", pid), 4096);
  if (!stat) return std::nullopt;
  const size_t after_name = stat->rfind(')');  // the name may hold anything
  if (after_name == std::string::npos) return std::nullopt;
  size_t at = after_name + 1;
  for (int field = 2; field < 21; ++field) at = stat->find(' ', at + 1);  // to the 22nd field
  return stat->substr(at + 1, stat->find(' ', at + 1) - at - 1);
}

// Whose process numbers mean the same as ours.
std::string our_world() {
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return first_line("/proc/sys/kernel/random/boot_id") + "/" +
         std::string(name.data(), static_cast<size_t>(std::max<ssize_t>(0, length)));
}

// "world node pid start serial\n"
std::string our_text() {
  static std::atomic<int> serial{0};
  std::array<char, 256> node{};
  ::gethostname(node.data(), node.size() - 1);
  return fmt::format("{} {} {} {} {}\n", our_world(), node.data(), ::getpid(),
                     start_of_process(::getpid()).value_or("?"), serial++);
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// The file system's clock, which need not be ours: the time that it gives a file written now.
std::optional<timespec> clock_of(const std::string& path) {
  const std::string probe = fmt::format("{}.clock.{}", path, ::getpid());
  UniqueFd fd(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  struct stat status {};
  const bool known = fd && ::write(fd.get(), "x", 1) == 1 && ::fstat(fd.get(), &status) == 0;
  ::unlink(probe.c_str());
  if (!known) return std::nullopt;
  return status.st_mtim;
}

bool is_stale(const std::string& path, const std::string& text, const struct stat& status) {
  const std::vector<std::string> words = words_of(text);
  if (words.size() == 5 && words[0] == our_world()) {
    long pid = 0;
    std::from_chars(words[2].data(), words[2].data() + words[2].size(), pid);
    return start_of_process(pid) != words[3];
  }
  const auto now = clock_of(path);
  return now && now->tv_sec - status.st_mtim.tv_sec > kLeaseLifetime.count();
}

// Puts a stale lease out of the way. Somebody else may have done so and hold a new one by now: that one goes back.
void put_away(const std::string& path, const struct stat& stale) {
  const std::string away = fmt::format("{}.stale.{}", path, ::getpid());
  if (::rename(path.c_str(), away.c_str()) != 0) return;
  struct stat moved {};
  if (::stat(away.c_str(), &moved) == 0 && moved.st_ino != stale.st_ino)
    (void)::link(away.c_str(), path.c_str());
  ::unlink(away.c_str());
}

}  // namespace

Result<std::optional<Lease>> Lease::take(const std::string& path, std::string* holder) {
  for (int tries = 0; tries < 3; ++tries) {
    // Written first and linked then, so that nobody ever reads half a lease.
    const std::string text = our_text();
    const std::string draft = fmt::format("{}.new.{}.{}", path, ::getpid(), words_of(text).back());
    RETURN_IF_ERROR(base::write_file_atomically(draft, text, 0600, base::Durability::kProcess));
    const int linked = ::link(draft.c_str(), path.c_str()) == 0 ? 0 : errno;
    ::unlink(draft.c_str());
    if (linked == 0) return std::optional<Lease>(Lease(path, text));
    if (linked != EEXIST) return base::errno_error(Code::kIo, path, linked);
    struct stat status {};
    const auto present = base::read_file(path, 4096);
    if (!present || ::stat(path.c_str(), &status) != 0) continue;  // given back meanwhile
    if (!is_stale(path, *present, status)) {
      const std::vector<std::string> words = words_of(*present);
      if (holder != nullptr)
        *holder = words.size() == 5 ? fmt::format("{} (process {})", words[1], words[2]) : "somebody";
      return std::optional<Lease>();
    }
    put_away(path, status);
  }
  return std::optional<Lease>();
}

Lease::~Lease() {
  if (path_.empty()) return;
  const auto present = base::read_file(path_, 4096);
  if (present && *present == text_) ::unlink(path_.c_str());
}

void Lease::renew() const {
  const auto present = base::read_file(path_, 4096);
  if (present && *present == text_) ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
}

}  // namespace shardrun::compile
