/* The plugin ABI compiles as strict C11, and its layout does not move: a change here needs a new version. */
#include <stddef.h>

#include "plugins/abi/comm_v1.h"

_Static_assert(sizeof(shardrun_plugin_header) == 112, "header");
_Static_assert(offsetof(shardrun_plugin_header, abi_major) == 8, "header.abi_major");
_Static_assert(offsetof(shardrun_plugin_header, abi_minor) == 10, "header.abi_minor");
_Static_assert(offsetof(shardrun_plugin_header, struct_size) == 12, "header.struct_size");
_Static_assert(offsetof(shardrun_plugin_header, name) == 16, "header.name");
_Static_assert(offsetof(shardrun_plugin_header, build_id) == 48, "header.build_id");

_Static_assert(sizeof(shardrun_comm_config) == 48, "config");
_Static_assert(SHARDRUN_COMM_V1_SMALLEST_CONFIG == 32, "config of minor 0");
_Static_assert(offsetof(shardrun_comm_config, timeout_ms) == 32, "config.timeout_ms");
_Static_assert(offsetof(shardrun_comm_config, device_index) == 36, "config.device_index");
_Static_assert(offsetof(shardrun_comm_config, channel_count) == 40, "config.channel_count");
_Static_assert(offsetof(shardrun_comm_config, local_world_size) == 4, "config.local_world_size");
_Static_assert(offsetof(shardrun_comm_config, node_count) == 8, "config.node_count");
_Static_assert(offsetof(shardrun_comm_config, local_rank) == 12, "config.local_rank");
_Static_assert(offsetof(shardrun_comm_config, provider) == 16, "config.provider");
_Static_assert(offsetof(shardrun_comm_config, interface_name) == 24, "config.interface_name");

_Static_assert(sizeof(shardrun_comm_peer) == 32, "peer");
_Static_assert(offsetof(shardrun_comm_peer, address_bytes) == 8, "peer.address_bytes");
_Static_assert(offsetof(shardrun_comm_peer, node_name) == 16, "peer.node_name");
_Static_assert(offsetof(shardrun_comm_peer, node_id) == 24, "peer.node_id");

#define SLOT(index) (sizeof(shardrun_plugin_header) + (index) * sizeof(void (*)(void)))
_Static_assert(sizeof(shardrun_comm_v1_table) == SLOT(20), "table");
_Static_assert(SHARDRUN_COMM_V1_SMALLEST_TABLE == SLOT(15), "table of minor 0");
_Static_assert(SHARDRUN_COMM_V1_TABLE_OF_MINOR_1 == SLOT(17), "table of minor 1");
_Static_assert(offsetof(shardrun_comm_v1_table, traits) == SLOT(15), "table.traits");
_Static_assert(offsetof(shardrun_comm_v1_table, channel_open_on_stream) == SLOT(16),
               "table.channel_open_on_stream");
_Static_assert(offsetof(shardrun_comm_v1_table, last_error_ranks) == SLOT(17), "table.last_error_ranks");
_Static_assert(SHARDRUN_COMM_V1_TABLE_OF_MINOR_3 == SLOT(18), "table of minor 3");
_Static_assert(offsetof(shardrun_comm_v1_table, all_to_all) == SLOT(18), "table.all_to_all");
_Static_assert(SHARDRUN_COMM_V1_TABLE_OF_MINOR_4 == SLOT(19), "table of minor 4");
_Static_assert(offsetof(shardrun_comm_v1_table, reduce_scatter_of) == SLOT(19), "table.reduce_scatter_of");
_Static_assert(offsetof(shardrun_comm_v1_table, header) == 0, "table.header");
_Static_assert(offsetof(shardrun_comm_v1_table, last_error) == SLOT(0), "table.last_error");
_Static_assert(offsetof(shardrun_comm_v1_table, open) == SLOT(1), "table.open");
_Static_assert(offsetof(shardrun_comm_v1_table, local_address) == SLOT(2), "table.local_address");
_Static_assert(offsetof(shardrun_comm_v1_table, connect) == SLOT(3), "table.connect");
_Static_assert(offsetof(shardrun_comm_v1_table, channel_open) == SLOT(4), "table.channel_open");
_Static_assert(offsetof(shardrun_comm_v1_table, channel_close) == SLOT(5), "table.channel_close");
_Static_assert(offsetof(shardrun_comm_v1_table, all_gather) == SLOT(6), "table.all_gather");
_Static_assert(offsetof(shardrun_comm_v1_table, reduce_scatter) == SLOT(7), "table.reduce_scatter");
_Static_assert(offsetof(shardrun_comm_v1_table, all_reduce) == SLOT(8), "table.all_reduce");
_Static_assert(offsetof(shardrun_comm_v1_table, broadcast) == SLOT(9), "table.broadcast");
_Static_assert(offsetof(shardrun_comm_v1_table, barrier) == SLOT(10), "table.barrier");
_Static_assert(offsetof(shardrun_comm_v1_table, wait) == SLOT(11), "table.wait");
_Static_assert(offsetof(shardrun_comm_v1_table, abort) == SLOT(12), "table.abort");
_Static_assert(offsetof(shardrun_comm_v1_table, close) == SLOT(13), "table.close");
_Static_assert(offsetof(shardrun_comm_v1_table, provider) == SLOT(14), "table.provider");

_Static_assert(SHARDRUN_COMM_OK == 0 && SHARDRUN_COMM_ABORTED == 7, "status codes");
_Static_assert(SHARDRUN_COMM_FP32 == 1 && SHARDRUN_COMM_FP64 == 2 && SHARDRUN_COMM_BF16 == 3,
               "element types");

/* What a plugin written in C sees of the header in memory. */
unsigned char abi_first_byte_of_magic(void);
unsigned char abi_first_byte_of_magic(void) {
  const uint64_t magic = SHARDRUN_PLUGIN_MAGIC;
  return *(const unsigned char*)&magic;
}
