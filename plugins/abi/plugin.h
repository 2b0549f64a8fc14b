/* plugin.h: the prefix that every shardrun plugin's table of functions starts with. C11, frozen layout.
 *
 * A plugin is a shared object that exports one symbol per interface version it implements, a pointer-free
 * constant struct whose first member is this header. The host opens it by absolute path, checks the header in
 * this order and refuses by name, with expected and found values, on the first mismatch: magic, abi_major,
 * struct_size. It never falls back to another plugin.
 *
 * Appending functions to the end of a struct raises abi_minor; any other change is a new _vN header.
 */
#ifndef SHARDRUN_PLUGINS_ABI_PLUGIN_H
#define SHARDRUN_PLUGINS_ABI_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHARDRUN_PLUGIN_MAGIC UINT64_C(0x6e75726472616873) /* "shardrun" in little-endian memory */

typedef struct shardrun_plugin_header {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t struct_size; /* sizeof the whole table, header included */
  char name[32];        /* "ofi"; NUL-terminated */
  char build_id[64];    /* version of the plugin and of the library it speaks to; NUL-terminated */
} shardrun_plugin_header;

#ifdef __cplusplus
}
#endif
#endif
