// Saves libfabric's signals. For each completion it writes a byte into a socket of its own, once in its tcp provider and once in
// ofi_rxm, to wake a thread that sleeps while another one makes progress, and reads it again before the next sleep. The engine has one
// thread for an endpoint, which is awake then, and before it sleeps fi_trywait() looks into the queues themselves. So the byte is not
// written (docs/decisions/0145). The linker puts these functions in the place of write() and read() in libfabric.a (--wrap in
// CMakeLists.txt): nothing else in this plugin writes or reads a single byte with them.
#include <unistd.h>

extern "C" {
ssize_t __real_write(int fd, const void* data, size_t bytes);
ssize_t __real_read(int fd, void* data, size_t bytes);
__attribute__((visibility("hidden"))) ssize_t __wrap_write(int fd, const void* data, size_t bytes);
__attribute__((visibility("hidden"))) ssize_t __wrap_read(int fd, void* data, size_t bytes);

ssize_t __wrap_write(int fd, const void* data, size_t bytes) {
  return bytes == 1 ? 1 : __real_write(fd, data, bytes);
}

ssize_t __wrap_read(int fd, void* data, size_t bytes) {
  return bytes == 1 ? 1 : __real_read(fd, data, bytes);
}
}
