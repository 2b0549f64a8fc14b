/* comm_v1.h: the table of functions that a communication plugin exports, version 1. C11.
 *
 * A plugin moves bytes and sums between the ranks of one job. The host loads it (plugin.h says how), and calls:
 *
 *   open -> local_address -> [the host exchanges addresses through PMIx] -> connect -> channel_open ... ->
 *   operations and waits -> channel_close ... -> close
 *
 * Rules for every function
 *   Status    0 is success, any other value is one of SHARDRUN_COMM_*; last_error() then has one line for people.
 *             Outputs are written only on success.
 *   Host      On any status but 0 the host reports the text, calls close, and ends the rank. It never retries and
 *             never turns to another plugin.
 *   Memory    The plugin copies what it keeps of its inputs, except the buffers of operations: these must live and
 *             stay untouched (inputs: unwritten) until wait() has returned, with success or with an error.
 *   Threads   A channel belongs to one thread at a time; different channels of one context may be used by different
 *             threads at once. abort may be called from any thread. open, connect and close are called by one
 *             thread, while no other is in the plugin.
 *   Order     Every member of a channel starts the same operations in the same order with the same sizes ("op order
 *             rule"). Channels are independent of each other.
 *   Sums      Sums are made in the element type, along a binary tree over the group's ranks: the sum of the ranks
 *             b * 2^k ... (b + 1) * 2^k - 1, as far as there are such ranks, is that of their lower half plus that of
 *             their upper half. The same world gives the same bits, whatever the provider and the placement of ranks
 *             on nodes. (Up to minor 2 it was ((x0 + x1) + x2) + ..., which differs from four ranks on.)
 *             Two numbers in bf16 are added in fp32, and their sum is rounded to bf16, to nearest even, wherever the
 *             tree adds: on whichever rank that is done, and whether or not the sum then travels.
 *             A plugin without SHARDRUN_COMM_SUMS_IN_RANK_ORDER adds in an order of its own, which is the same
 *             each time for the same group on the same machines with the same library and settings.
 *   Dead      After TIMEOUT, PEER_LOST, MISMATCH, ABORTED or IO from an operation or a wait, all channels of the
 *             context are dead: every later call returns the same status, no buffer is touched any more, and only
 *             channel_close and close are of use. The plugin tells the other ranks why, so that they need not wait
 *             for their own time limits.
 */
#ifndef SHARDRUN_PLUGINS_ABI_COMM_V1_H
#define SHARDRUN_PLUGINS_ABI_COMM_V1_H

#include <stddef.h>
#include <stdint.h>

#include "plugins/abi/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHARDRUN_COMM_V1_SYMBOL "shardrun_comm_v1" /* a const shardrun_comm_v1_table */
#define SHARDRUN_COMM_ABI_MAJOR 1
/* 1: buffers in a device's memory; 2: the ranks of a failure, what is marked so below; 3: the order of sums; 4: all_to_all;
 * 5: sums in bf16 */
#define SHARDRUN_COMM_ABI_MINOR 5

/* The memory that sums need beside the buffers of operations is known to the host before it opens anything, so that
 * it can plan. A running operation takes at most shardrun_comm_v1_sum_bytes(group size, bytes), where `bytes` is what
 * one member contributes to this rank's sum: its part's bytes for reduce_scatter; for all_reduce the whole buffer up to
 * WHOLE_BYTES, and above that a group-size-th of it, rounded up to an element. At most RUNNING operations of a
 * channel run at once; later ones wait and take nothing yet. A channel may keep what it took until it is closed.
 * Beside that an operation may hold 64 KiB, and 4 MiB of what other nodes' ranks send before it starts here. Ranks of one node
 * may pass bytes through memory that they share: at most NODE_BYTES for each running operation of a channel. */
#define SHARDRUN_COMM_V1_RUNNING 2
#define SHARDRUN_COMM_V1_WHOLE_BYTES ((uint64_t)16 << 10)
#define SHARDRUN_COMM_V1_NODE_BYTES ((uint64_t)4 << 20)

static inline uint64_t shardrun_comm_v1_sum_bytes(uint32_t group_size, uint64_t bytes) {
  const uint64_t others = group_size > 1 ? group_size - 1 : 0;
  uint64_t each = others > 0 ? ((uint64_t)16 << 20) / others / 256 * 256 : 0;
  if (each > (uint64_t)1 << 20) each = (uint64_t)1 << 20;
  if (each < (uint64_t)64 << 10) each = (uint64_t)64 << 10;
  return others * (bytes < each ? (bytes + 63) / 64 * 64 : each);
}

enum {
  SHARDRUN_COMM_OK = 0,
  SHARDRUN_COMM_INVALID = 1,     /* an argument cannot be right: a bug or an unusable setting of the caller */
  SHARDRUN_COMM_UNSUPPORTED = 2, /* this machine or library lacks the provider */
  SHARDRUN_COMM_IO = 3,          /* the operating system or the fabric library refused */
  SHARDRUN_COMM_TIMEOUT = 4,     /* the text names the ranks that did not answer */
  SHARDRUN_COMM_PEER_LOST = 5,   /* the text names the rank that is gone */
  SHARDRUN_COMM_MISMATCH = 6,    /* ranks broke the op order rule */
  SHARDRUN_COMM_ABORTED = 7      /* abort was called, here or on another rank */
};

/* Element types of sums. BF16, the upper half of an fp32 number, is there since minor 5. */
enum { SHARDRUN_COMM_FP32 = 1, SHARDRUN_COMM_FP64 = 2, SHARDRUN_COMM_BF16 = 3 };

typedef struct shardrun_comm_context shardrun_comm_context; /* one rank's endpoints */
typedef struct shardrun_comm_channel shardrun_comm_channel; /* one stream of operations among a group */

typedef struct shardrun_comm_config {
  uint32_t struct_size;      /* sizeof(shardrun_comm_config) as the host was compiled */
  uint32_t local_world_size; /* ranks on this node; 0 if unknown. Lets a plugin skip what it will not need */
  uint32_t node_count;       /* nodes in the job; 0 if unknown */
  uint32_t local_rank;  /* this rank's number among them; says which of several network devices is its own */
  const char* provider; /* "auto", or a name that the plugin knows: "tcp", "shm", "efa" */
  const char* interface_name; /* network interface to use, e.g. "eth1"; NULL lets the plugin choose */
  /* Since minor 1; a plugin that is given a shorter struct takes the defaults. */
  uint32_t timeout_ms;  /* limit for what an operation needs to start: connections; 0: 300000 */
  int32_t device_index; /* the GPU that this rank uses, as CUDA counts them; -1, the default: none is named */
  uint32_t channel_count; /* all channel ids will be below it; 0: unknown */
  uint32_t reserved;      /* 0 */
} shardrun_comm_config;

/* What a plugin promises beyond the minimum of this interface: bits of shardrun_comm_v1_table.traits. */
enum {
  SHARDRUN_COMM_SUMS_IN_RANK_ORDER = 1, /* "Sums" above is kept; every plugin of minor 0 has it */
  SHARDRUN_COMM_DEVICE_BUFFERS = 2,     /* channel_open_on_stream is there */
  SHARDRUN_COMM_TELLS_PEERS = 4 /* a failure here ends the others' operations at once; minor 0 has it */
};

typedef struct shardrun_comm_peer {
  const void* address; /* what that rank's local_address returned */
  uint64_t address_bytes;
  const char* node_name; /* for messages */
  uint64_t node_id;      /* equal for ranks of one node, different otherwise */
} shardrun_comm_peer;

typedef struct shardrun_comm_v1_table {
  shardrun_plugin_header header;

  /* Text of the calling thread's last failed call into this plugin; "" if none. Valid until its next call. */
  const char* (*last_error)(void);

  /* Inputs: config. Output: context, to be given to close. Opens endpoints and makes the local address; talks to
   * nobody. UNSUPPORTED names the provider and what there is instead; INVALID names an interface that does not
   * exist. */
  int32_t (*open)(const shardrun_comm_config* config, shardrun_comm_context** context);

  /* Outputs: this rank's address, opaque, at most 1024 bytes; valid until close. */
  int32_t (*local_address)(shardrun_comm_context* context, const void** address, uint64_t* address_bytes);

  /* Inputs: this process's rank; one peer per rank of the world in rank order, this rank's own included. Starts the
   * connections and returns without waiting for them. Call it once. INVALID for an address of another plugin or
   * version. */
  int32_t (*connect)(shardrun_comm_context* context, uint32_t global_rank, uint32_t world_size,
                     const shardrun_comm_peer* peers);

  /* Inputs: channel_id (0..254, the same on all members, not in use); the group as ascending global ranks that
   * include this one, or NULL and 0 for the whole world. Output: channel. Does not wait for this group, but may wait
   * for the groups of channels that were opened before; ranks open the channels that they share in the same order. */
  int32_t (*channel_open)(shardrun_comm_context* context, uint32_t channel_id, const uint32_t* global_ranks,
                          uint32_t rank_count, shardrun_comm_channel** channel);
  /* Frees the channel. Operations that were not waited for make the whole context dead. Never fails. */
  void (*channel_close)(shardrun_comm_channel* channel);

  /* Operations. Each returns at once; output: ticket, counted from 1 on each channel, for wait. Sizes may be 0. */

  /* mine: `bytes` bytes; all: group size * bytes, in group order. mine may be this rank's own slot inside all. */
  int32_t (*all_gather)(shardrun_comm_channel* channel, const void* mine, uint64_t bytes, void* all,
                        uint64_t* ticket);
  /* full: group size * count fp32; mine: `count` fp32, the sum of everyone's slice number <own group rank>. They must
   * not overlap. */
  int32_t (*reduce_scatter)(shardrun_comm_channel* channel, const float* full, uint64_t count, float* mine,
                            uint64_t* ticket);
  /* InOut: buffer, `count` elements of `element_type`. */
  int32_t (*all_reduce)(shardrun_comm_channel* channel, void* buffer, uint64_t count, uint32_t element_type,
                        uint64_t* ticket);
  /* InOut: buffer, `bytes` bytes, read on group rank `root`, written on the others. */
  int32_t (*broadcast)(shardrun_comm_channel* channel, void* buffer, uint64_t bytes, uint32_t root,
                       uint64_t* ticket);
  int32_t (*barrier)(shardrun_comm_channel* channel, uint64_t* ticket);

  /* Blocks until the operation is complete; waiting again for a complete one is legal. TIMEOUT after timeout_ms, and
   * at most half a second more to ask who is missing. */
  int32_t (*wait)(shardrun_comm_channel* channel, uint64_t ticket, uint64_t timeout_ms);

  /* Ends every operation here and, as fast as the network carries it, on all ranks, with ABORTED and `reason`. */
  void (*abort)(shardrun_comm_context* context, const char* reason);

  /* Frees the context and everything it made on this machine; its channels must be closed before. Peers that still
   * wait for this rank get PEER_LOST. Never fails. */
  void (*close)(shardrun_comm_context* context);

  /* Says which providers carry the data, for the run record: "tcp", "shm+tcp". Call it after connect; valid until
   * close. */
  const char* (*provider)(const shardrun_comm_context* context);

  /* Since minor 1: look at header.struct_size first. */

  uint32_t traits;
  uint32_t reserved;

  /* Does what channel_open does, for a channel whose operations take buffers in the memory of the context's device
   * and are ordered with `device_stream` (a cudaStream_t): an operation starts after what was put on the stream
   * before the call; what is put on it after wait() has returned comes after the operation. wait() need not wait for
   * the operation itself: a failure that comes later ends the next call, and an operation that is not complete
   * timeout_ms after its wait() makes the context dead. Buffers stay untouched until the stream has passed the
   * operation. NULL in a plugin without the trait. */
  int32_t (*channel_open_on_stream)(shardrun_comm_context* context, uint32_t channel_id,
                                    const uint32_t* global_ranks, uint32_t rank_count, void* device_stream,
                                    shardrun_comm_channel** channel);

  /* Since minor 2: look at header.struct_size first. */

  /* Gives the ranks that the text of last_error() is about, those that did not answer or are lost, in a form for
   * programs. Output: ranks, numbered as in connect, none twice; valid until the thread's next call. Returns how
   * many: 0 if the failure is nobody's in particular. */
  uint32_t (*last_error_ranks)(const uint32_t** ranks);

  /* Since minor 4: look at header.struct_size first. */

  /* An operation like those above. send: send_bytes[m] bytes for each member m, one behind the other in group order;
   * receive: receive_bytes[m] bytes from each, likewise. What one member sends to another is what that one expects of
   * it; otherwise sizes are free, and may be 0. send and receive must not overlap; the sizes are copied. NULL in a
   * plugin that lacks it. */
  int32_t (*all_to_all)(shardrun_comm_channel* channel, const void* send, const uint64_t* send_bytes,
                        void* receive, const uint64_t* receive_bytes, uint64_t* ticket);

  /* Since minor 5: look at header.struct_size first. */

  /* reduce_scatter of elements of a type: FP32 or BF16. */
  int32_t (*reduce_scatter_of)(shardrun_comm_channel* channel, const void* full, uint64_t count,
                               uint32_t element_type, void* mine, uint64_t* ticket);
} shardrun_comm_v1_table;

/* The values of header.struct_size that a host tells apart: a table of minor 0 ends before `traits`. */
#define SHARDRUN_COMM_V1_SMALLEST_TABLE ((uint32_t)offsetof(shardrun_comm_v1_table, traits))
#define SHARDRUN_COMM_V1_TABLE_OF_MINOR_1 ((uint32_t)offsetof(shardrun_comm_v1_table, last_error_ranks))
#define SHARDRUN_COMM_V1_TABLE_OF_MINOR_3 ((uint32_t)offsetof(shardrun_comm_v1_table, all_to_all))
#define SHARDRUN_COMM_V1_TABLE_OF_MINOR_4 ((uint32_t)offsetof(shardrun_comm_v1_table, reduce_scatter_of))
#define SHARDRUN_COMM_V1_SMALLEST_CONFIG ((uint32_t)offsetof(shardrun_comm_config, timeout_ms))
static inline uint32_t shardrun_comm_v1_traits(const shardrun_comm_v1_table* table) {
  if (table->header.struct_size < SHARDRUN_COMM_V1_TABLE_OF_MINOR_1)
    return SHARDRUN_COMM_SUMS_IN_RANK_ORDER | SHARDRUN_COMM_TELLS_PEERS;
  return table->traits;
}

#ifdef __cplusplus
}
#endif
#endif
