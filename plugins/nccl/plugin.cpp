// The C face of the nccl plugin (plugins/abi/comm_v1.h). Every entry passes through one guard that turns exceptions and
// Status into a code and this thread's last error.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/c_face.h"
#include "plugins/nccl/engine.h"

struct shardrun_comm_context {
  std::unique_ptr<shardrun::nccl::Engine> engine;
};

// Only a name for the C side: the pointer is an nccl::Channel.
struct shardrun_comm_channel;

namespace shardrun::nccl {
namespace {

using common::copy_text;
using common::guard;

Channel& channel_of(shardrun_comm_channel* channel) {
  return *reinterpret_cast<Channel*>(channel);
}

int32_t start(shardrun_comm_channel* channel, const Request& request, uint64_t* ticket) {
  return guard([&] { return channel_of(channel).engine->start(channel_of(channel), request, ticket); });
}

const char* last_error() {
  return common::last_error_text().c_str();
}

int32_t open(const shardrun_comm_config* config, shardrun_comm_context** context) {
  return guard([&]() -> Status {
    if (config->struct_size < SHARDRUN_COMM_V1_SMALLEST_CONFIG || config->provider == nullptr)
      return {SHARDRUN_COMM_INVALID, "the configuration is shorter than any, or names no provider"};
    if (config->interface_name != nullptr)
      return {SHARDRUN_COMM_INVALID,
              "NCCL chooses network interfaces by itself: set NCCL_SOCKET_IFNAME instead"};
    OpenOptions options;
    options.provider = config->provider;
    options.local_rank = config->local_rank;
    options.node_count = config->node_count;
    if (config->struct_size >= sizeof(shardrun_comm_config)) {
      options.device_index = config->device_index;
      options.channel_count = config->channel_count;
      if (config->timeout_ms > 0) options.timeout = std::chrono::milliseconds(config->timeout_ms);
    }
    auto opened = std::make_unique<shardrun_comm_context>();
    if (Status status = Engine::open(options, &opened->engine); !status.ok()) return status;
    *context = opened.release();
    return {};
  });
}

int32_t local_address(shardrun_comm_context* context, const void** address, uint64_t* address_bytes) {
  *address = context->engine->address().data();
  *address_bytes = context->engine->address().size();
  return SHARDRUN_COMM_OK;
}

int32_t connect(shardrun_comm_context* context, uint32_t global_rank, uint32_t world_size,
                const shardrun_comm_peer* peers) {
  return guard([&] {
    std::vector<Peer> copies(world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const auto* bytes = static_cast<const std::byte*>(peers[rank].address);
      copies[rank] = {{bytes, bytes + peers[rank].address_bytes},
                      peers[rank].node_name == nullptr ? "" : peers[rank].node_name};
    }
    return context->engine->connect(global_rank, std::move(copies));
  });
}

int32_t open_either(shardrun_comm_context* context, uint32_t channel_id, const uint32_t* global_ranks,
                    uint32_t rank_count, const Engine::DeviceStream* stream,
                    shardrun_comm_channel** channel) {
  return guard([&] {
    Channel* opened = nullptr;
    Status status = context->engine->open_channel(
        channel_id, std::vector<uint32_t>(global_ranks, global_ranks + rank_count), stream, &opened);
    if (status.ok()) *channel = reinterpret_cast<shardrun_comm_channel*>(opened);
    return status;
  });
}

int32_t channel_open(shardrun_comm_context* context, uint32_t channel_id, const uint32_t* global_ranks,
                     uint32_t rank_count, shardrun_comm_channel** channel) {
  return open_either(context, channel_id, global_ranks, rank_count, nullptr, channel);
}

int32_t channel_open_on_stream(shardrun_comm_context* context, uint32_t channel_id,
                               const uint32_t* global_ranks, uint32_t rank_count, void* device_stream,
                               shardrun_comm_channel** channel) {
  const Engine::DeviceStream stream{static_cast<CuStream*>(device_stream)};
  return open_either(context, channel_id, global_ranks, rank_count, &stream, channel);
}

void channel_close(shardrun_comm_channel* channel) {
  guard([&]() -> Status {
    channel_of(channel).engine->close_channel(&channel_of(channel));
    return {};
  });
}

int32_t all_gather(shardrun_comm_channel* channel, const void* mine, uint64_t bytes, void* all,
                   uint64_t* ticket) {
  return start(channel, {Kind::kAllGather, mine, all, bytes}, ticket);
}

int32_t reduce_scatter(shardrun_comm_channel* channel, const float* full, uint64_t count, float* mine,
                       uint64_t* ticket) {
  return start(channel, {Kind::kReduceScatter, full, mine, count}, ticket);
}

int32_t all_reduce(shardrun_comm_channel* channel, void* buffer, uint64_t count, uint32_t element_type,
                   uint64_t* ticket) {
  if (element_type != SHARDRUN_COMM_FP32 && element_type != SHARDRUN_COMM_FP64) {
    return guard([&]() -> Status {
      return {SHARDRUN_COMM_INVALID, "all_reduce has no element type " + std::to_string(element_type)};
    });
  }
  const Kind kind = element_type == SHARDRUN_COMM_FP32 ? Kind::kAllReduceFloat : Kind::kAllReduceDouble;
  return start(channel, {kind, buffer, buffer, count}, ticket);
}

int32_t broadcast(shardrun_comm_channel* channel, void* buffer, uint64_t bytes, uint32_t root,
                  uint64_t* ticket) {
  if (root >= channel_of(channel).ranks.size()) {
    return guard([&]() -> Status {
      return {SHARDRUN_COMM_INVALID, "broadcast from rank " + std::to_string(root) + " of a group of " +
                                         std::to_string(channel_of(channel).ranks.size())};
    });
  }
  return start(channel, {Kind::kBroadcast, buffer, buffer, bytes, root}, ticket);
}

int32_t barrier(shardrun_comm_channel* channel, uint64_t* ticket) {
  return start(channel, {}, ticket);
}

int32_t wait(shardrun_comm_channel* channel, uint64_t ticket, uint64_t timeout_ms) {
  constexpr uint64_t kLongest = uint64_t{365} * 24 * 3600 * 1000;
  return guard([&] {
    return channel_of(channel).engine->wait(channel_of(channel), ticket,
                                            std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
  });
}

void abort(shardrun_comm_context* context, const char* reason) {
  guard([&]() -> Status {
    context->engine->abort(reason == nullptr ? "no reason given" : reason);
    return {};
  });
}

void close(shardrun_comm_context* context) {
  guard([&]() -> Status {
    // An engine whose thread is stuck inside NCCL cannot be freed safely; the process is about to end anyway.
    if (!context->engine->stop()) (void)context->engine.release();
    delete context;
    return {};
  });
}

const char* provider(const shardrun_comm_context* context) {
  return context->engine->provider().c_str();
}

constexpr shardrun_comm_v1_table make_table() {
  shardrun_comm_v1_table table{};
  table.header.magic = SHARDRUN_PLUGIN_MAGIC;
  table.header.abi_major = SHARDRUN_COMM_ABI_MAJOR;
  table.header.abi_minor = SHARDRUN_COMM_ABI_MINOR;
  table.header.struct_size = sizeof(shardrun_comm_v1_table);
  copy_text(table.header.name, "nccl", sizeof(table.header.name));
  copy_text(table.header.build_id, "shardrun " SHARDRUN_VERSION ", NCCL of the machine",
            sizeof(table.header.build_id));
  table.last_error = last_error;
  table.open = open;
  table.local_address = local_address;
  table.connect = connect;
  table.channel_open = channel_open;
  table.channel_close = channel_close;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.all_reduce = all_reduce;
  table.broadcast = broadcast;
  table.barrier = barrier;
  table.wait = wait;
  table.abort = abort;
  table.close = close;
  table.provider = provider;
  table.traits = SHARDRUN_COMM_DEVICE_BUFFERS;
  table.channel_open_on_stream = channel_open_on_stream;
  return table;
}

}  // namespace
}  // namespace shardrun::nccl

extern "C" __attribute__((visibility("default"))) const shardrun_comm_v1_table shardrun_comm_v1;
extern "C" constexpr shardrun_comm_v1_table shardrun_comm_v1 = shardrun::nccl::make_table();
