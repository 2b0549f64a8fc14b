#include "runtime/base/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/process_files.h"

namespace shardrun::base {
namespace {

struct Entry {
  pid_t parent = 0;
  bool zombie = false;
};

// Returns every process that this one can see, with its parent.
std::map<pid_t, Entry> process_table() {
  std::map<pid_t, Entry> table;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  if (!directory) return table;
  while (const dirent* entry = ::readdir(directory.get())) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 0) continue;
    if (const auto stat = read_process_stat(pid)) table[pid] = {stat->parent, stat->state == 'Z'};
  }
  return table;
}

struct Family {
  std::vector<pid_t> children;     // ours
  std::vector<pid_t> descendants;  // the children and their descendants, without zombies
};

Family family(const std::set<pid_t>& except) {
  Family found;
  const auto table = process_table();
  std::multimap<pid_t, pid_t> by_parent;
  for (const auto& [pid, entry] : table) by_parent.emplace(entry.parent, pid);
  std::vector<pid_t> open = {::getpid()};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    const auto range = by_parent.equal_range(parent);
    for (auto it = range.first; it != range.second; ++it) {
      const pid_t pid = it->second;
      const bool own = parent == ::getpid();
      if (own && except.count(pid) != 0) continue;
      if (own) found.children.push_back(pid);
      if (!table.at(pid).zombie) found.descendants.push_back(pid);
      open.push_back(pid);
    }
  }
  return found;
}

// Returns the children of a process, of all its threads; nullopt where the kernel does not tell. Exact for ourselves, since
// nobody but us reaps them; for another process one may be missing.
std::optional<std::vector<pid_t>> children_of(pid_t pid) {
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(::opendir(tasks.c_str()), ::closedir);
  std::optional<std::vector<pid_t>> found;
  while (const dirent* thread = threads ? ::readdir(threads.get()) : nullptr) {
    if (thread->d_name[0] == '.') continue;
    const auto children =
        read_file(fmt::format("{}/{}/children", tasks, thread->d_name), /*limit_bytes=*/1 << 16);
    if (!children) continue;
    if (!found) found.emplace();
    const std::vector<pid_t> more = parse_children(*children);
    found->insert(found->end(), more.begin(), more.end());
  }
  return found;
}

// Returns our children, those that have ended and wait to be collected among them.
std::vector<pid_t> own_children() {
  auto children = children_of(::getpid());
  return children ? std::move(*children) : family({}).children;
}

}  // namespace

Result<DescendantReaper> DescendantReaper::start(std::set<pid_t> unseen) {
  DescendantReaper reaper;
  reaper.before_ = std::move(unseen);
  ::prctl(PR_GET_CHILD_SUBREAPER, &reaper.was_subreaper_);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return errno_error(Code::kIo, "becoming the reaper of the ranks' processes", errno);
  }
  siginfo_t info{};
  const bool childless = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
  if (!childless) {
    for (pid_t pid : own_children()) reaper.before_.insert(pid);
  }
  return reaper;
}

DescendantReaper::DescendantReaper(DescendantReaper&& other) noexcept
    : before_(std::move(other.before_)),
      active_(std::exchange(other.active_, false)),
      was_subreaper_(other.was_subreaper_) {}

DescendantReaper::~DescendantReaper() {
  if (active_) ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

bool DescendantReaper::kill_all(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return true;
    const std::vector<pid_t> children = own_children();
    if (std::all_of(children.begin(), children.end(), [this](pid_t pid) { return before_.count(pid) != 0; }))
      return true;
    const Family found = family(before_);
    for (pid_t pid : found.descendants) ::kill(pid, SIGKILL);
    for (pid_t pid : found.children) ::waitpid(pid, nullptr, WNOHANG);
    if (found.children.empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void DescendantReaper::collect_orphans(const std::set<pid_t>& keep) {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (keep.count(info.si_pid) != 0 || before_.count(info.si_pid) != 0) return;
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

char process_state(pid_t pid) {
  const auto stat = read_process_stat(pid);
  return stat ? stat->state : '?';
}

int64_t resident_bytes_of_tree(pid_t root) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  int64_t bytes = 0;
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    const auto memory = read_file(fmt::format("/proc/{}/statm", pid), /*limit_bytes=*/4096);
    if (!memory) continue;
    bytes += parse_resident_pages(*memory) * page;
    const auto children = children_of(pid);
    if (children) open.insert(open.end(), children->begin(), children->end());
  }
  return bytes;
}

}  // namespace shardrun::base
