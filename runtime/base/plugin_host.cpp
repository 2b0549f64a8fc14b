#include "runtime/base/plugin_host.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/io.h"
#include "runtime/base/trust.h"

namespace shardrun::base {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the real path, if the file and everything named on the way may be trusted.
Result<std::string> check_file(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return Error(Code::kInvalid, fmt::format("plugin path \"{}\" is not absolute", path));
  }
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return errno_error(Code::kNotFound, fmt::format("plugin {}", path), errno);
  const std::string real = resolved;
  free(resolved);
  // A link's folder counts as much as what it names.
  for (const std::string& place : {folder_of(path), real}) {
    if (auto trusted = refuse_if_others_write(place); !trusted)
      return trusted.error().context(fmt::format("plugin {}", path));
  }
  struct stat status;
  if (stat(real.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error(Code::kRefused, fmt::format("plugin {} is not a regular file", path));
  }
  return real;
}

struct Loaded {
  void* handle = nullptr;
  const shardrun_plugin_header* header = nullptr;
};

Result<Loaded> load(const std::string& path, const PluginInterface& interface) {
  const auto refuse = [&](std::string what) {
    return Error(Code::kUnsupported, fmt::format("plugin {}: {}", path, what));
  };
  Loaded loaded;
  loaded.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded.handle == nullptr) return refuse(dlerror());
  loaded.header = static_cast<const shardrun_plugin_header*>(dlsym(loaded.handle, interface.symbol.c_str()));
  std::string mismatch;
  if (loaded.header == nullptr) {
    mismatch =
        fmt::format("expected the symbol {}, found none: it is of another kind or version", interface.symbol);
  } else if (loaded.header->magic != SHARDRUN_PLUGIN_MAGIC) {
    mismatch =
        fmt::format("expected magic {:016x}, found {:016x}", SHARDRUN_PLUGIN_MAGIC, loaded.header->magic);
  } else if (loaded.header->abi_major != interface.abi_major) {
    mismatch = fmt::format("expected abi_major {}, found {}", interface.abi_major, loaded.header->abi_major);
  } else if (loaded.header->struct_size < interface.smallest_struct) {
    mismatch = fmt::format("expected a table of at least {} bytes, found {} (abi_minor {})",
                           interface.smallest_struct, loaded.header->struct_size, loaded.header->abi_minor);
  }
  if (mismatch.empty()) return loaded;
  dlclose(loaded.handle);
  return refuse(mismatch);
}

// Is what the child runs: never returns, runs no handler and flushes no buffer of its parent's.
[[noreturn]] void probe_in_child(const std::string& path, const PluginInterface& interface, int report_fd) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) signal(signal_number, SIG_DFL);
  const auto result = load(path, interface);
  const std::string verdict = result ? "+" : "-" + result.error().message();
  (void)write_all(report_fd, verdict, "plugin probe");
  _exit(0);
}

// Reads the child's verdict until it closes its end; returns false if the time is up before.
bool read_verdict(int fd, std::chrono::milliseconds patience, std::string* verdict) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  char buffer[4096];
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable = {fd, POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : poll(&readable, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    verdict->append(buffer, count);
  }
}

Result<void> probe(const std::string& path, const PluginInterface& interface) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error(Code::kIo, "pipe for the plugin probe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return errno_error(Code::kIo, "fork for the plugin probe", errno);
  if (child == 0) probe_in_child(path, interface, writer.get());
  writer.reset();

  std::string verdict;
  const bool in_time = read_verdict(reader.get(), interface.patience, &verdict);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) {
    return Error(Code::kUnsupported, fmt::format("plugin {}: loading it takes more than {} s", path,
                                                 static_cast<double>(interface.patience.count()) / 1000.0));
  }
  if (verdict == "+") return {};
  if (!verdict.empty()) return Error(Code::kUnsupported, verdict.substr(1));
  if (WIFSIGNALED(status)) {
    return Error(Code::kUnsupported, fmt::format("plugin {}: loading it ends the process with signal {} ({})",
                                                 path, WTERMSIG(status), strsignal(WTERMSIG(status))));
  }
  return Error(Code::kUnsupported,
               fmt::format("plugin {}: loading it ends the process with code {}", path, WEXITSTATUS(status)));
}

}  // namespace

Result<Plugin> Plugin::open(const std::string& path, const PluginInterface& interface) {
  ASSIGN_OR_RETURN(auto real, check_file(path));
  RETURN_IF_ERROR(probe(real, interface));
  ASSIGN_OR_RETURN(auto loaded, load(real, interface));
  return Plugin(loaded.handle, loaded.header);
}

Plugin::Plugin(Plugin&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), header_(std::exchange(other.header_, nullptr)) {}

Plugin& Plugin::operator=(Plugin&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(header_, other.header_);
  return *this;
}

Plugin::~Plugin() {
  if (handle_ != nullptr) dlclose(handle_);
}

}  // namespace shardrun::base
