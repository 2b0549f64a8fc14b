/* glibc_floor.c: the three functions of glibc 2.35 and 2.36 that the libraries of g++ 12 and libevent of Debian 12 ask for, so
 * that what is built there runs on glibc 2.34, too. Nothing else of ours or of theirs is newer.
 *
 * The SPANK plugin has them inside. In the bundle they are libshardrun_floor.so, from which the bundle's libraries take them on
 * every system, whether its glibc has them or not (cluster-configs/packaging/glibc_floor). Thread-safe, as glibc's are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* Fills memory with random bytes of the kernel's, or ends the process, for the function cannot report a failure. */
void arc4random_buf(void* bytes, size_t size) {
  char* next = bytes;
  while (size > 0) {
    const ssize_t got = getrandom(next, size, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got > 0) {
      next += got;
      size -= (size_t)got;
    }
  }
}

uint32_t arc4random(void) {
  uint32_t value = 0;
  arc4random_buf(&value, sizeof(value));
  return value;
}

struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look_at(struct dl_phdr_info* object, size_t size, void* context) {
  (void)size;
  struct search* search = context;
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  void* frames = NULL;
  int inside = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    const uintptr_t first = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME)
      frames = (void*)first; /* NOLINT(performance-no-int-to-ptr): an address of the loader's */
    if (part->p_type != PT_LOAD) continue;
    if (first < begin) begin = first;
    if (first + part->p_memsz > end) end = first + part->p_memsz;
    if (search->address >= first && search->address < first + part->p_memsz) inside = 1;
  }
  if (!inside || frames == NULL) return 0;
  search->found->dlfo_flags = 0;
  search->found->dlfo_map_start = (void*)begin; /* NOLINT(performance-no-int-to-ptr) */
  search->found->dlfo_map_end = (void*)end;     /* NOLINT(performance-no-int-to-ptr) */
  search->found->dlfo_link_map = NULL;          /* the unwinder, who alone asks, does not read it */
  search->found->dlfo_eh_frame = frames;
  return 1;
}

/* Finds for an address the object that has it, with its table of unwinding. Returns 0, or -1 if there is none. */
int _dl_find_object(void* address, struct dl_find_object* result) {
  struct search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(look_at, &search) == 1 ? 0 : -1;
}
