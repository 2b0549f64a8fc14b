// The file calls of the C library, as processes of a World make them: a program that links this file has these instead, also
// where libstdc++ calls them. What is not under kRoot, and calls outside of a simulated process, go to the kernel.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/world.h"

namespace {

using shardrun::simulation::Inode;
using shardrun::simulation::kRoot;
using shardrun::simulation::Process;
using shardrun::simulation::World;
using shardrun::simulation::world_of_caller;

// Returns the function of this name that would be called without this file.
template <typename Function>
Function* next_of(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name)                                     \
  ([]() {                                              \
    static auto* const next = next_of(&::name, #name); \
    return next;                                       \
  }())

bool is_shared(std::string_view path) {
  return path == "/" || path == kRoot || (path.starts_with(kRoot) && path[4] == '/');
}

// Returns the world when a process of it makes this call on this path, after giving its turn back; else null.
World* enter(const char* call, const char* path, const char* second = "") {
  World* const world = world_of_caller();
  if (world == nullptr || !is_shared(path)) return nullptr;
  world->yield();
  if (!world->running()->killed) world->note(std::string(call) + " " + path + " " + second);
  return world;
}

World* enter(const char* call, int descriptor) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr) return nullptr;
  world->yield();
  if (!world->running()->killed) world->note(std::string(call) + " a file");
  return world;
}

int client(const World& world) {
  return world.running()->identity.client;
}

// Turns what SharedFiles answers into what the C library does.
int answer(World& world, int result) {
  if (result < 0) {
    errno = -result;
    world.note(std::string("  ") + std::strerror(errno));
    return -1;
  }
  return result;
}

int answer_change(World& world, int result) {
  if (result < 0) return answer(world, result);
  if (world.on_change) world.on_change(*world.running());
  return 0;
}

int failed_by_death() {
  errno = EIO;
  return -1;
}

void describe(const Inode& inode, int number, struct stat* out) {
  *out = {};
  out->st_ino = static_cast<ino_t>(number);
  out->st_mode = inode.mode | (inode.folder ? S_IFDIR : S_IFREG);
  out->st_nlink = static_cast<nlink_t>(inode.links);
  out->st_size = static_cast<off_t>(inode.bytes.size());
  out->st_uid = ::geteuid();
}

// Files of the machine that say who a process is. Returns nullopt for others; the text "" means that there is none.
std::optional<std::string> file_of_machine(const World& world, std::string_view path) {
  const auto& us = world.running()->identity;
  if (path == "/proc/sys/kernel/random/boot_id") return us.boot + "\n";
  if (path == "/etc/machine-id") return us.machine + "\n";
  if (path == "/proc/sys/net/ipv4/ip_local_port_range") return std::string("32768\t60999\n");
  if (!path.starts_with("/proc/") || !path.ends_with("/stat")) return std::nullopt;
  const int pid = std::atoi(path.data() + std::strlen("/proc/"));
  for (const auto& process : world.processes()) {
    const auto& its = process->identity;
    const bool is_seen =
        its.machine == us.machine && its.boot == us.boot && its.pid_namespace == us.pid_namespace;
    if (process->pid != pid || !is_seen || !process->is_alive()) continue;
    std::string text = std::to_string(pid) + " (shardrun) S";
    for (int field = 4; field < 22; ++field) text += " 0";
    return text + " " + std::to_string(process->start_time) + "\n";
  }
  return std::string();
}

struct Listing {
  std::vector<std::string> names;
  size_t at = 0;
  int folder = 0, descriptor = -1;
  dirent entry{};
};
std::vector<Listing*> listings;

Listing* listing_of(DIR* folder) {
  const auto found = std::find(listings.begin(), listings.end(), reinterpret_cast<Listing*>(folder));
  return found == listings.end() ? nullptr : *found;
}

DIR* list(World& world, int inode, int descriptor) {
  auto* const listing = new Listing;
  listing->folder = inode;
  listing->descriptor = descriptor;
  for (const auto& [name, ignored] : world.files().at(inode).names) listing->names.push_back(name);
  listings.push_back(listing);
  return reinterpret_cast<DIR*>(listing);
}

int open_here(World& world, const char* path, int flags, mode_t mode) {
  if (world.running()->killed) return failed_by_death();
  const int inode = answer(world, world.files().open(client(world), path, flags, mode));
  if (inode < 0) return -1;
  if ((flags & O_DIRECTORY) != 0 && !world.files().at(inode).folder) return answer(world, -ENOTDIR);
  if ((flags & O_CREAT) != 0 && world.on_change) world.on_change(*world.running());
  return world.add_handle({.inode = inode, .text = {}, .position = 0, .appends = (flags & O_APPEND) != 0});
}

int stat_here(World& world, const char* path, struct stat* out) {
  if (world.running()->killed) return failed_by_death();
  const int inode = answer(world, world.files().find(client(world), path));
  if (inode < 0) return -1;
  describe(world.files().at(inode), inode, out);
  return 0;
}

int open_any(const char* path, int flags, mode_t mode) {
  World* const world = world_of_caller();
  if (world != nullptr && !is_shared(path)) {
    if (const auto text = file_of_machine(*world, path)) {
      if (text->empty()) {
        errno = ENOENT;
        return -1;
      }
      return world->add_handle({.inode = 0, .text = *text, .position = 0, .appends = false});
    }
  }
  if (World* const ours = enter("open", path)) return open_here(*ours, path, flags, mode);
  return NEXT(open)(path, flags, mode);
}

ssize_t put(World& world, int descriptor, const void* bytes, size_t count, std::optional<size_t> offset) {
  Process& process = *world.running();
  if (process.killed) return failed_by_death();
  World::Handle& handle = *world.handle(descriptor);
  std::string& file = world.files().at(handle.inode).bytes;
  const size_t at = offset.value_or(handle.appends ? file.size() : handle.position);
  if (file.size() < at + count) file.resize(at + count, '\0');
  std::memcpy(file.data() + at, bytes, count);
  if (!offset) handle.position = at + count;
  return static_cast<ssize_t>(count);
}

ssize_t get(World& world, int descriptor, void* bytes, size_t count, std::optional<size_t> offset) {
  if (world.running()->killed) return failed_by_death();
  World::Handle& handle = *world.handle(descriptor);
  const std::string& file = handle.inode == 0 ? handle.text : world.files().at(handle.inode).bytes;
  const size_t at = std::min(offset.value_or(handle.position), file.size());
  const size_t got = std::min(count, file.size() - at);
  std::memcpy(bytes, file.data() + at, got);
  if (!offset) handle.position = at + got;
  return static_cast<ssize_t>(got);
}

// Returns the mode of an open(), which is given where a file may be made.
mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_any(path, flags, mode);
}

// libstdc++ opens folders relative to others while it removes a tree.
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if (folder == AT_FDCWD) return open_any(path, flags, mode);
  World* const world = enter("openat", folder);
  if (world == nullptr) return NEXT(openat)(folder, path, flags, mode);
  if (world->running()->killed) return failed_by_death();
  const int inode = answer(*world, world->files().find_in(world->handle(folder)->inode, path));
  if (inode < 0) return -1;
  if ((flags & O_DIRECTORY) != 0 && !world->files().at(inode).folder) return answer(*world, -ENOTDIR);
  return world->add_handle({.inode = inode, .text = {}, .position = 0, .appends = false});
}

int mkostemp(char* pattern, int flags) {
  World* const world = enter("mkostemp", pattern);
  if (world == nullptr) return NEXT(mkostemp)(pattern, flags);
  char* const end = pattern + std::strlen(pattern) - 6;
  for (char* letter = end; *letter != '\0'; ++letter) *letter = static_cast<char>('a' + world->chance(26));
  return open_here(*world, pattern, O_RDWR | O_CREAT | O_EXCL, 0600);
}

int close(int descriptor) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr) return NEXT(close)(descriptor);
  world->close(descriptor);
  return 0;
}

ssize_t write(int descriptor, const void* bytes, size_t count) {
  World* const world = enter("write", descriptor);
  if (world != nullptr) return put(*world, descriptor, bytes, count, std::nullopt);
  // What a conductor tells its user is of the trace.
  if (World* const here = world_of_caller(); here != nullptr && descriptor == STDERR_FILENO) {
    if (!here->running()->killed) here->note(std::string(static_cast<const char*>(bytes), count));
    return static_cast<ssize_t>(count);
  }
  return NEXT(write)(descriptor, bytes, count);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  World* const world = enter("pwrite", descriptor);
  if (world == nullptr) return NEXT(pwrite)(descriptor, bytes, count, offset);
  return put(*world, descriptor, bytes, count, static_cast<size_t>(offset));
}

ssize_t read(int descriptor, void* bytes, size_t count) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr) return NEXT(read)(descriptor, bytes, count);
  return get(*world, descriptor, bytes, count, std::nullopt);
}

ssize_t pread(int descriptor, void* bytes, size_t count, off_t offset) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr)
    return NEXT(pread)(descriptor, bytes, count, offset);
  return get(*world, descriptor, bytes, count, static_cast<size_t>(offset));
}

int fsync(int descriptor) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr) return NEXT(fsync)(descriptor);
  return world->running()->killed ? failed_by_death() : 0;
}

int fchmod(int descriptor, mode_t mode) {
  World* const world = world_of_caller();
  if (world == nullptr || world->handle(descriptor) == nullptr) return NEXT(fchmod)(descriptor, mode);
  if (world->running()->killed) return failed_by_death();
  world->files().at(world->handle(descriptor)->inode).mode = mode;
  return 0;
}

int chmod(const char* path, mode_t mode) {
  World* const world = enter("chmod", path);
  if (world == nullptr) return NEXT(chmod)(path, mode);
  if (world->running()->killed) return failed_by_death();
  const int inode = answer(*world, world->files().find(client(*world), path));
  if (inode < 0) return -1;
  world->files().at(inode).mode = mode;
  return 0;
}

int fstat(int descriptor, struct stat* out) {
  World* const world = world_of_caller();
  World::Handle* const handle = world == nullptr ? nullptr : world->handle(descriptor);
  if (handle == nullptr) return NEXT(fstat)(descriptor, out);
  if (world->running()->killed) return failed_by_death();
  if (handle->inode != 0) {
    describe(world->files().at(handle->inode), handle->inode, out);
  } else {
    *out = {};
    out->st_mode = S_IFREG | 0444;
  }
  return 0;
}

int fstat64(int descriptor, struct stat64* out) {
  return fstat(descriptor, reinterpret_cast<struct stat*>(out));
}

int stat(const char* path, struct stat* out) {
  World* const world = enter("stat", path);
  return world == nullptr ? NEXT(stat)(path, out) : stat_here(*world, path, out);
}

int lstat(const char* path, struct stat* out) {
  World* const world = enter("lstat", path);
  return world == nullptr ? NEXT(lstat)(path, out) : stat_here(*world, path, out);
}

int access(const char* path, int mode) {
  World* const world = enter("access", path);
  if (world == nullptr) return NEXT(access)(path, mode);
  struct stat ignored {};
  return stat_here(*world, path, &ignored);
}

char* realpath(const char* path, char* out) {
  World* const world = enter("realpath", path);
  if (world == nullptr) return NEXT(realpath)(path, out);
  struct stat ignored {};
  if (stat_here(*world, path, &ignored) != 0) return nullptr;
  return out == nullptr ? ::strdup(path) : std::strcpy(out, path);
}

int mkdir(const char* path, mode_t mode) {
  World* const world = enter("mkdir", path);
  if (world == nullptr) return NEXT(mkdir)(path, mode);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().make_folder(client(*world), path, mode));
}

int link(const char* from, const char* to) {
  World* const world = enter("link", from, to);
  if (world == nullptr) return NEXT(link)(from, to);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().link(client(*world), from, to));
}

int unlink(const char* path) {
  World* const world = enter("unlink", path);
  if (world == nullptr) return NEXT(unlink)(path);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().unlink(client(*world), path));
}

int rmdir(const char* path) {
  World* const world = enter("rmdir", path);
  if (world == nullptr) return NEXT(rmdir)(path);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().remove_folder(client(*world), path));
}

int remove(const char* path) {
  World* const world = world_of_caller();
  if (world == nullptr || !is_shared(path)) return NEXT(remove)(path);
  return unlink(path) == 0 || errno != EISDIR ? 0 : rmdir(path);
}

int unlinkat(int folder, const char* path, int flags) {
  if (folder == AT_FDCWD && world_of_caller() != nullptr && is_shared(path))
    return (flags & AT_REMOVEDIR) != 0 ? rmdir(path) : unlink(path);
  World* const world = enter("unlinkat", folder);
  if (world == nullptr) return NEXT(unlinkat)(folder, path, flags);
  if (world->running()->killed) return failed_by_death();
  const int inode = world->handle(folder)->inode;
  return answer_change(*world, world->files().unlink_in(inode, path, (flags & AT_REMOVEDIR) != 0));
}

int rename(const char* from, const char* to) {
  World* const world = enter("rename", from, to);
  if (world == nullptr) return NEXT(rename)(from, to);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().rename(client(*world), from, to, /*exchange=*/false));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  World* const world = enter("renameat2", from, to);
  if (world == nullptr) return NEXT(renameat2)(from_folder, from, to_folder, to, flags);
  if (world->running()->killed) return failed_by_death();
  return answer_change(*world, world->files().rename(client(*world), from, to, flags == RENAME_EXCHANGE));
}

DIR* opendir(const char* path) {
  World* const world = enter("opendir", path);
  if (world == nullptr) return NEXT(opendir)(path);
  const int inode = world->running()->killed
                        ? failed_by_death()
                        : answer(*world, world->files().open_folder(client(*world), path));
  return inode < 0 ? nullptr : list(*world, inode, -1);
}

DIR* fdopendir(int descriptor) {
  World* const world = world_of_caller();
  World::Handle* const handle = world == nullptr ? nullptr : world->handle(descriptor);
  if (handle == nullptr) return NEXT(fdopendir)(descriptor);
  return list(*world, handle->inode, descriptor);
}

dirent* readdir(DIR* folder) {
  Listing* const listing = listing_of(folder);
  if (listing == nullptr) return NEXT(readdir)(folder);
  if (listing->at == listing->names.size()) return nullptr;
  const std::string& name = listing->names[listing->at++];
  listing->entry.d_type = DT_UNKNOWN;
  std::strncpy(listing->entry.d_name, name.c_str(), sizeof listing->entry.d_name - 1);
  return &listing->entry;
}

int closedir(DIR* folder) {
  Listing* const listing = listing_of(folder);
  if (listing == nullptr) return NEXT(closedir)(folder);
  if (listing->descriptor >= 0) close(listing->descriptor);
  listings.erase(std::find(listings.begin(), listings.end(), listing));
  delete listing;
  return 0;
}

int dirfd(DIR* folder) {
  Listing* const listing = listing_of(folder);
  if (listing == nullptr) return NEXT(dirfd)(folder);
  if (listing->descriptor < 0) {
    listing->descriptor = world_of_caller()->add_handle(
        {.inode = listing->folder, .text = {}, .position = 0, .appends = false});
  }
  return listing->descriptor;
}

ssize_t readlink(const char* path, char* out, size_t size) {
  World* const world = world_of_caller();
  if (world == nullptr || std::string_view(path) != "/proc/self/ns/pid")
    return NEXT(readlink)(path, out, size);
  const std::string& name = world->running()->identity.pid_namespace;
  return static_cast<ssize_t>(name.copy(out, size));
}

int gethostname(char* name, size_t size) {
  World* const world = world_of_caller();
  if (world == nullptr) return NEXT(gethostname)(name, size);
  std::snprintf(name, size, "%s", world->running()->identity.host.c_str());
  return 0;
}

pid_t getpid() {
  World* const world = world_of_caller();
  return world == nullptr ? NEXT(getpid)() : world->running()->pid;
}

struct passwd* getpwuid(uid_t) {
  static char name[] = "ada";
  static struct passwd user {};
  user.pw_name = name;
  return &user;
}

int poll(struct pollfd* descriptors, nfds_t count, int milliseconds) {
  if (world_of_caller() == nullptr) return NEXT(poll)(descriptors, count, milliseconds);
  for (nfds_t i = 0; i < count; ++i) descriptors[i].revents = descriptors[i].events;
  return static_cast<int>(count);
}

char* getenv(const char* name) {
  World* const world = world_of_caller();
  if (world == nullptr) return NEXT(getenv)(name);
  static std::string job, starts;
  const auto& us = world->running()->identity;
  const std::string_view asked = name;
  if (us.slurm_job.empty() || (asked != "SLURM_JOB_ID" && asked != "SLURM_RESTART_COUNT")) return nullptr;
  std::string& text = asked == "SLURM_JOB_ID" ? job : starts;
  text = asked == "SLURM_JOB_ID" ? us.slurm_job : std::to_string(us.slurm_starts);
  return text.data();
}

// Others have their turns meanwhile.
int nanosleep(const struct timespec* pause, struct timespec* left) {
  World* const world = world_of_caller();
  if (world == nullptr) return NEXT(nanosleep)(pause, left);
  world->yield();
  return 0;
}

// A clock of the machine, which may be off by days, or set back meanwhile.
int clock_gettime(clockid_t clock, struct timespec* out) {
  World* const world = world_of_caller();
  if (world == nullptr) return NEXT(clock_gettime)(clock, out);
  const int64_t jump = clock == CLOCK_REALTIME ? world->chance(200000) - 100000 : 0;
  out->tv_sec = static_cast<time_t>(1'700'000'000 + world->now() / 1000 + jump);
  out->tv_nsec = world->now() % 1000 * 1'000'000;
  return 0;
}

}  // extern "C"
