// The C face of a communication plugin (plugins/abi/comm_v1.h) over its engine: checks what C callers hand over, turns
// Status and exceptions into a code and the thread's last error, and fills the table.
//
// Engine and Channel are the plugin's own:
//   static Status Engine::open(const OpenOptions&, std::unique_ptr<Engine>*)
//   const std::vector<std::byte>& address(), const std::string& provider(), Status connect(uint32_t, std::vector<Peer>)
//   Status open_channel(uint32_t id, std::vector<uint32_t> global_ranks, Channel**), void close_channel(Channel*)
//   Status start(Channel&, const Collective&, uint64_t* ticket), Status wait(Channel&, ticket, milliseconds)
//   void abort(const std::string&), bool stop(): false if a library is stuck below it, so that it must not be freed
//   Engine* Channel::engine, uint32_t Channel::size()
// What C knows as a context is the Engine, and what it knows as a channel is the Channel.
//
// Thread rule: that of comm_v1.h; the last error is each thread's own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/collective.h"
#include "plugins/common/status.h"

namespace shardrun::common {

// Returns the place of this thread's last failure.
inline Status& last_failure() {
  thread_local Status failure;
  return failure;
}

// Runs `call`, which returns a Status; turns that and any exception into a code and the thread's last error.
template <typename Call>
int32_t guard(Call call) noexcept {
  try {
    Status status = call();
    const int32_t code = status.code;
    if (code != SHARDRUN_COMM_OK) last_failure() = std::move(status);
    return code;
  } catch (const std::bad_alloc&) {
    last_failure() = {};  // a long text would need memory too
    last_failure().text = "out of memory";
    return SHARDRUN_COMM_IO;
  } catch (const std::exception& error) {
    last_failure() = {SHARDRUN_COMM_IO, error.what()};
    return SHARDRUN_COMM_IO;
  }
}

constexpr void copy_text(char* out, std::string_view text, size_t capacity) {
  for (size_t i = 0; i < capacity - 1 && i < text.size(); ++i) out[i] = text[i];
}

template <typename Engine, typename Channel>
class CFace {
  using Context = shardrun_comm_context;
  using Handle = shardrun_comm_channel;

 public:
  static constexpr shardrun_comm_v1_table table(std::string_view name, std::string_view build_id,
                                                uint32_t traits) {
    shardrun_comm_v1_table table{};
    table.header.magic = SHARDRUN_PLUGIN_MAGIC;
    table.header.abi_major = SHARDRUN_COMM_ABI_MAJOR;
    table.header.abi_minor = SHARDRUN_COMM_ABI_MINOR;
    table.header.struct_size = sizeof(shardrun_comm_v1_table);
    copy_text(table.header.name, name, sizeof(table.header.name));
    copy_text(table.header.build_id, build_id, sizeof(table.header.build_id));
    table.last_error = [] { return last_failure().text.c_str(); };
    table.open = open;
    table.local_address = local_address;
    table.connect = connect;
    table.channel_open = channel_open;
    table.channel_close = channel_close;
    table.all_gather = all_gather;
    table.reduce_scatter = reduce_scatter;
    table.all_reduce = all_reduce;
    table.broadcast = broadcast;
    table.barrier = [](Handle* channel, uint64_t* ticket) { return start(channel, {}, ticket); };
    table.wait = wait;
    table.abort = abort;
    table.close = close;
    table.provider = [](const Context* context) { return engine_of(context).provider().c_str(); };
    table.traits = traits;
    table.reduce_scatter_of = reduce_scatter_of;
    table.last_error_ranks = [](const uint32_t** ranks) {
      *ranks = last_failure().ranks.data();
      return static_cast<uint32_t>(last_failure().ranks.size());
    };
    return table;
  }

  // Of plugins that have it: goes into the table by itself.
  static int32_t all_to_all(Handle* channel, const void* send, const uint64_t* send_bytes, void* receive,
                            const uint64_t* receive_bytes, uint64_t* ticket) {
    return start(channel, {Kind::kAllToAll, send, receive, 0, 0, send_bytes, receive_bytes}, ticket);
  }

  // Opens a channel of `context` by `open(engine, ranks, &channel)`, for what a plugin offers beside channel_open.
  template <typename Open>
  static int32_t open_channel(Context* context, const uint32_t* global_ranks, uint32_t rank_count,
                              Handle** channel, Open open) {
    return guard([&] {
      Channel* opened = nullptr;
      Status status =
          open(engine_of(context), std::vector<uint32_t>(global_ranks, global_ranks + rank_count), &opened);
      if (status.ok()) *channel = reinterpret_cast<Handle*>(opened);
      return status;
    });
  }

 private:
  static Engine& engine_of(Context* context) { return *reinterpret_cast<Engine*>(context); }
  static const Engine& engine_of(const Context* context) { return *reinterpret_cast<const Engine*>(context); }
  static Channel& channel_of(Handle* channel) { return *reinterpret_cast<Channel*>(channel); }

  static int32_t open(const shardrun_comm_config* config, Context** context) {
    return guard([&]() -> Status {
      if (config->struct_size < SHARDRUN_COMM_V1_SMALLEST_CONFIG || config->provider == nullptr)
        return {SHARDRUN_COMM_INVALID, "the configuration is shorter than any, or names no provider"};
      OpenOptions options;
      options.provider = config->provider;
      if (config->interface_name != nullptr) options.interface_name = config->interface_name;
      options.local_world_size = config->local_world_size;
      options.local_rank = config->local_rank;
      options.node_count = config->node_count;
      if (config->struct_size >= sizeof(shardrun_comm_config)) {
        options.device_index = config->device_index;
        options.channel_count = config->channel_count;
        if (config->timeout_ms > 0) options.timeout = std::chrono::milliseconds(config->timeout_ms);
      }
      std::unique_ptr<Engine> engine;
      if (Status status = Engine::open(options, &engine); !status.ok()) return status;
      *context = reinterpret_cast<Context*>(engine.release());
      return {};
    });
  }

  static int32_t local_address(Context* context, const void** address, uint64_t* address_bytes) {
    *address = engine_of(context).address().data();
    *address_bytes = engine_of(context).address().size();
    return SHARDRUN_COMM_OK;
  }

  static int32_t connect(Context* context, uint32_t global_rank, uint32_t world_size,
                         const shardrun_comm_peer* peers) {
    return guard([&] {
      std::vector<Peer> copies(world_size);
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const auto* bytes = static_cast<const std::byte*>(peers[rank].address);
        copies[rank].address.assign(bytes, bytes + peers[rank].address_bytes);
        if (peers[rank].node_name != nullptr) copies[rank].node_name = peers[rank].node_name;
        copies[rank].node_id = peers[rank].node_id;
      }
      return engine_of(context).connect(global_rank, std::move(copies));
    });
  }

  static int32_t channel_open(Context* context, uint32_t channel_id, const uint32_t* global_ranks,
                              uint32_t rank_count, Handle** channel) {
    return open_channel(context, global_ranks, rank_count, channel,
                        [&](Engine& engine, std::vector<uint32_t> ranks, Channel** opened) {
                          return engine.open_channel(channel_id, std::move(ranks), opened);
                        });
  }

  static void channel_close(Handle* channel) {
    guard([&]() -> Status {
      channel_of(channel).engine->close_channel(&channel_of(channel));
      return {};
    });
  }

  static int32_t start(Handle* channel, const Collective& collective, uint64_t* ticket) {
    return guard([&] { return channel_of(channel).engine->start(channel_of(channel), collective, ticket); });
  }

  static int32_t invalid(std::string text) {
    return guard([&] { return Status{SHARDRUN_COMM_INVALID, std::move(text)}; });
  }

  static int32_t all_gather(Handle* channel, const void* mine, uint64_t bytes, void* all, uint64_t* ticket) {
    return start(channel, {Kind::kAllGather, mine, all, bytes}, ticket);
  }

  static int32_t reduce_scatter(Handle* channel, const float* full, uint64_t count, float* mine,
                                uint64_t* ticket) {
    return start(channel, {Kind::kReduceScatter, full, mine, count}, ticket);
  }

  static int32_t all_reduce(Handle* channel, void* buffer, uint64_t count, uint32_t element_type,
                            uint64_t* ticket) {
    constexpr Kind kKinds[] = {Kind::kAllReduceFloat, Kind::kAllReduceDouble, Kind::kAllReduceBf16};
    if (element_type < SHARDRUN_COMM_FP32 || element_type > SHARDRUN_COMM_BF16)
      return invalid("all_reduce has no element type " + std::to_string(element_type));
    return start(channel, {kKinds[element_type - SHARDRUN_COMM_FP32], buffer, buffer, count}, ticket);
  }

  static int32_t reduce_scatter_of(Handle* channel, const void* full, uint64_t count, uint32_t element_type,
                                   void* mine, uint64_t* ticket) {
    if (element_type == SHARDRUN_COMM_FP32)
      return start(channel, {Kind::kReduceScatter, full, mine, count}, ticket);
    if (element_type == SHARDRUN_COMM_BF16)
      return start(channel, {Kind::kReduceScatterBf16, full, mine, count}, ticket);
    return invalid("reduce_scatter has no element type " + std::to_string(element_type));
  }

  static int32_t broadcast(Handle* channel, void* buffer, uint64_t bytes, uint32_t root, uint64_t* ticket) {
    const uint32_t size = channel_of(channel).size();
    if (root >= size) {
      return invalid("broadcast from rank " + std::to_string(root) + " of a group of " +
                     std::to_string(size));
    }
    return start(channel, {Kind::kBroadcast, buffer, buffer, bytes, root}, ticket);
  }

  static int32_t wait(Handle* channel, uint64_t ticket, uint64_t timeout_ms) {
    constexpr uint64_t kLongest = uint64_t{365} * 24 * 3600 * 1000;
    return guard([&] {
      return channel_of(channel).engine->wait(channel_of(channel), ticket,
                                              std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
    });
  }

  static void abort(Context* context, const char* reason) {
    guard([&]() -> Status {
      engine_of(context).abort(reason == nullptr ? "no reason given" : reason);
      return {};
    });
  }

  static void close(Context* context) {
    guard([&]() -> Status {
      // An engine whose thread is stuck in a library cannot be freed safely; the process is about to end anyway.
      if (engine_of(context).stop()) delete &engine_of(context);
      return {};
    });
  }
};

}  // namespace shardrun::common
