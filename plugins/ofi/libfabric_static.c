/* libfabric_static.c: lets libfabric.a, as Debian builds it, be linked into the plugin with the providers that we
 * use.
 *
 * Why: loading Debian's libfabric.so costs every rank some 280 ms before its first message. Its psm and psm2 libraries
 * calibrate clocks in constructors (2 x 100 ms, and they take over six signals and the CPU affinity meanwhile), and its
 * verbs provider reads /proc/kallsyms line by line (80 ms). Linked like this, opening takes 2 ms. Providers that are
 * left out here are reached through the system's libfabric.so.1 (fabric.cpp), so nothing is lost.
 *
 * Two kinds of definitions follow; all are hidden inside the plugin.
 *   - Entry points of providers that we leave out. Because they are defined here, the linker does not pull their
 *     objects from the archive.
 *   - Data symbols of libc that the archive's position-dependent objects can only address inside the same file.
 */
#define SHARDRUN_HIDDEN __attribute__((visibility("hidden")))

struct fi_provider;

#define SHARDRUN_NO_PROVIDER(name)                 \
  SHARDRUN_HIDDEN struct fi_provider* name(void);  \
  SHARDRUN_HIDDEN struct fi_provider* name(void) { \
    return 0;                                      \
  }

SHARDRUN_NO_PROVIDER(fi_debug_hook_ini)
SHARDRUN_NO_PROVIDER(fi_dmabuf_peer_mem_hook_ini)
SHARDRUN_NO_PROVIDER(fi_efa_ini)
SHARDRUN_NO_PROVIDER(fi_hook_hmem_ini)
SHARDRUN_NO_PROVIDER(fi_hook_noop_ini)
SHARDRUN_NO_PROVIDER(fi_hook_perf_ini)
SHARDRUN_NO_PROVIDER(fi_mrail_ini)
SHARDRUN_NO_PROVIDER(fi_psm2_ini)
SHARDRUN_NO_PROVIDER(fi_psm_ini)
SHARDRUN_NO_PROVIDER(fi_rxd_ini)
SHARDRUN_NO_PROVIDER(fi_shm_ini)
SHARDRUN_NO_PROVIDER(fi_sockets_ini)
SHARDRUN_NO_PROVIDER(fi_udp_ini)
SHARDRUN_NO_PROVIDER(fi_verbs_ini)
SHARDRUN_NO_PROVIDER(fi_xnet_ini)

/* glibc's own stderr object under the name that the archive's objects look for. */
extern char _IO_2_1_stderr_[];
extern void* stderr;
SHARDRUN_HIDDEN void* stderr = _IO_2_1_stderr_;
/* Used only by memory-registration caches that hook brk(), which tcp does not have. */
extern void* __curbrk;
SHARDRUN_HIDDEN void* __curbrk = 0;
struct in6_addr_bytes {
  unsigned char bytes[16];
};
extern const struct in6_addr_bytes in6addr_any, in6addr_loopback;
SHARDRUN_HIDDEN const struct in6_addr_bytes in6addr_any = {{0}};
SHARDRUN_HIDDEN const struct in6_addr_bytes in6addr_loopback = {
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
