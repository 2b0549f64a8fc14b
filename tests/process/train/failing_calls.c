// A library to preload: fails the k-th file call below some folders, counted over all processes of a run.
//
//   FAILING_FOLDERS=/runs:/checkpoints   calls by a path below one of them, and on what was opened so, count
//   FAILING_COUNTER=/dev/shm/file        8 bytes that the processes share: how many calls there were
//   FAILING_CALL=17                      fails this one; 0: none
//   FAILING_WITH=5                       with this errno; 0: a write writes half of its bytes, and other calls succeed
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
enum { kMostDescriptors = 65536 };

static _Atomic long* counter;
static long failing_call = -1;
static int failing_with;
static const char* folders;
static _Atomic char is_below[kMostDescriptors];  // descriptors of files below the folders

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv("FAILING_COUNTER");
  const char* call = getenv("FAILING_CALL");
  const char* with = getenv("FAILING_WITH");
  folders = getenv("FAILING_FOLDERS");
  if (path == NULL || call == NULL || with == NULL || folders == NULL) return;
  const int fd = NEXT(open)(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* shared = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  NEXT(close)(fd);
  if (shared == MAP_FAILED) return;
  failing_call = atol(call);
  failing_with = atoi(with);
  counter = shared;
}

static int below(const char* path) {
  if (counter == NULL || path == NULL) return 0;
  for (const char* folder = folders; *folder != '\0';) {
    const size_t length = strcspn(folder, ":");
    if (strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0')) return 1;
    folder += length + (folder[length] == ':');
  }
  return 0;
}

static int known(int fd) {
  return counter != NULL && fd >= 0 && fd < kMostDescriptors && is_below[fd];
}

// Counts a call; whether it is the one to fail.
static int fails(const char* what, const char* path) {
  if (atomic_fetch_add(counter, 1) + 1 != failing_call) return 0;
  char line[512];
  const int length = snprintf(line, sizeof line, "failing_calls: %s %s\n", what, path);
  (void)!NEXT(write)(STDERR_FILENO, line, (size_t)length);
  errno = failing_with;
  return failing_with != 0;
}

static int opened(int fd) {
  if (fd >= 0 && fd < kMostDescriptors) is_below[fd] = 1;
  return fd;
}

#define OPEN(name)                                                                         \
  int name(const char* path, int flags, ...) {                                             \
    va_list more;                                                                          \
    va_start(more, flags);                                                                 \
    const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                          \
    if (!below(path)) return NEXT(name)(path, flags, mode);                                \
    return fails("open", path) ? -1 : opened(NEXT(name)(path, flags, mode));               \
  }
OPEN(open)
OPEN(open64)

int mkostemp(char* pattern, int flags) {
  if (!below(pattern)) return NEXT(mkostemp)(pattern, flags);
  return fails("mkostemp", pattern) ? -1 : opened(NEXT(mkostemp)(pattern, flags));
}

int close(int fd) {
  if (!known(fd)) return NEXT(close)(fd);
  is_below[fd] = 0;
  const int failed = fails("close", "");
  const int failure = errno;
  const int closed = NEXT(close)(fd);  // the descriptor is gone in any case
  errno = failed ? failure : errno;
  return failed ? -1 : closed;
}

#define WRITE(name, more_parameters, more_arguments)                                   \
  ssize_t name(int fd, const void* bytes, size_t count more_parameters) {              \
    if (!known(fd)) return NEXT(name)(fd, bytes, count more_arguments);                \
    const long before = *counter;                                                      \
    if (fails("write", "")) return -1;                                                 \
    const int is_short = failing_with == 0 && before + 1 == failing_call && count > 1; \
    return NEXT(name)(fd, bytes, is_short ? count / 2 : count more_arguments);         \
  }
#define COMMA ,
WRITE(write, , )
WRITE(pwrite, COMMA off_t offset, COMMA offset)
WRITE(pwrite64, COMMA off64_t offset, COMMA offset)

#define READ(name, more_parameters, more_arguments)                              \
  ssize_t name(int fd, void* bytes, size_t count more_parameters) {              \
    if (!known(fd)) return NEXT(name)(fd, bytes, count more_arguments);          \
    return fails("read", "") ? -1 : NEXT(name)(fd, bytes, count more_arguments); \
  }
READ(read, , )
READ(pread, COMMA off_t offset, COMMA offset)
READ(pread64, COMMA off64_t offset, COMMA offset)

int fsync(int fd) {
  if (!known(fd)) return NEXT(fsync)(fd);
  return fails("fsync", "") ? -1 : NEXT(fsync)(fd);
}

#define BY_PATH(name, parameters, arguments)               \
  int name parameters {                                    \
    if (!below(path)) return NEXT(name) arguments;         \
    return fails(#name, path) ? -1 : NEXT(name) arguments; \
  }
BY_PATH(stat, (const char* path, struct stat* out), (path, out))
BY_PATH(access, (const char* path, int mode), (path, mode))
BY_PATH(mkdir, (const char* path, mode_t mode), (path, mode))
BY_PATH(rmdir, (const char* path), (path))
BY_PATH(unlink, (const char* path), (path))
BY_PATH(link, (const char* path, const char* to), (path, to))
BY_PATH(lstat, (const char* path, struct stat* out), (path, out))
BY_PATH(chmod, (const char* path, mode_t mode), (path, mode))
BY_PATH(rename, (const char* path, const char* to), (path, to))

int renameat2(int from, const char* path, int to, const char* other, unsigned flags) {
  if (!below(path)) return NEXT(renameat2)(from, path, to, other, flags);
  return fails("renameat2", path) ? -1 : NEXT(renameat2)(from, path, to, other, flags);
}

DIR* opendir(const char* path) {
  if (!below(path)) return NEXT(opendir)(path);
  return fails("opendir", path) ? NULL : NEXT(opendir)(path);
}
