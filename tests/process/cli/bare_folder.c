// A library to preload: a folder of a file server that knows neither locks nor files without a name.
//
//   BARE_FOLDER=/scratch   flock() of what lies there fails with ENOSYS, as on Lustre mounted without flock, and open() with
//                          O_TMPFILE with EOPNOTSUPP, as on NFS and Lustre
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_bare(const char* path) {
  const char* const folder = getenv("BARE_FOLDER");
  return folder != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

int flock(int fd, int operation) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  if (!is_bare(path)) return NEXT(flock)(fd, operation);
  errno = ENOSYS;
  return -1;
}

#define OPEN(name)                                                                                \
  int name(const char* path, int flags, ...) {                                                    \
    va_list more;                                                                                 \
    va_start(more, flags);                                                                        \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;          \
    va_end(more);                                                                                 \
    if ((flags & O_TMPFILE) != O_TMPFILE || !is_bare(path)) return NEXT(name)(path, flags, mode); \
    errno = EOPNOTSUPP;                                                                           \
    return -1;                                                                                    \
  }
OPEN(open)
OPEN(open64)
