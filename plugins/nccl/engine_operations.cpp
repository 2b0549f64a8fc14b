// Operations of the engine: how they are put on their channel's stream, waited for, and watched after they are handed
// over.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plugins/nccl/engine.h"
#include "plugins/nccl/nap.h"

namespace shardrun::nccl {
namespace {

constexpr std::chrono::milliseconds kWatchTime{10};

}  // namespace

Status Engine::take_event(Channel& channel, CuEvent** event) {
  if (channel.spare_events.empty())
    return cuda("cuEventCreate", driver_.event_create(event, kEventDisableTiming));
  *event = channel.spare_events.back();
  channel.spare_events.pop_back();
  return {};
}

Status Engine::start(Channel& channel, const Collective& request, uint64_t* ticket) {
  Lock lock(mutex_);
  if (!failure_.ok()) return failed(lock);
  const auto deadline = Clock::now() + timeout_;
  const auto in_time = fmt::format("within {} ms", timeout_.count());
  if (Status status = until(lock, channel, channel.connecting, deadline,
                            fmt::format("connecting channel {} {}", channel.id, in_time));
      !status.ok())
    return status;
  // NCCL takes the next call only when it has put the previous one on the stream, for which it may need the other
  // ranks.
  if (!channel.operations.empty() && !channel.operations.back().recorded) {
    const Operation& before = channel.operations.back();
    bool launching = true;
    for (Nap nap; launching; nap.take(lock)) {
      if (Status status = poll(channel); !status.ok()) return failed(lock);
      launching = !before.recorded;
      if (launching && Clock::now() >= deadline) {
        (void)fail(timed_out(channel, before, timeout_));
        return failed(lock);
      }
    }
  }
  Operation& operation = channel.operations.emplace_back();
  operation.ticket = channel.posted + 1;
  Status status = enqueue(channel, request, operation);
  if (status.ok()) status = poll(channel);
  if (!status.ok()) {
    (void)fail(std::move(status));
    return failed(lock);
  }
  *ticket = ++channel.posted;
  return {};
}

// Provides device copies of an operation's host buffers.
Status Engine::stage(Channel& channel, const Collective& request, Operation& operation, const void** in,
                     void** out) {
  const uint64_t ranks = channel.ranks.size();
  uint64_t in_bytes = request.count, out_bytes = request.count;  // as for a broadcast
  if (request.kind == Kind::kAllGather) out_bytes *= ranks;
  if (request.kind == Kind::kAllReduceFloat) in_bytes = out_bytes = request.count * sizeof(float);
  if (request.kind == Kind::kAllReduceDouble) in_bytes = out_bytes = request.count * sizeof(double);
  if (request.kind == Kind::kAllReduceBf16) in_bytes = out_bytes = request.count * sizeof(uint16_t);
  if (request.kind == Kind::kReduceScatter || request.kind == Kind::kReduceScatterBf16) {
    out_bytes *= request.kind == Kind::kReduceScatter ? sizeof(float) : sizeof(uint16_t);
    in_bytes = out_bytes * ranks;
  }
  Block from, to;
  if (Status status = take_block(channel, in_bytes, &from); !status.ok()) return status;
  operation.blocks.push_back(from);
  to = from;
  if (request.in != request.out) {
    if (Status status = take_block(channel, out_bytes, &to); !status.ok()) return status;
    operation.blocks.push_back(to);
  }
  if (in_bytes > 0) {
    if (Status status = cuda("cuMemcpyHtoDAsync", driver_.copy_in(from.at, request.in, in_bytes, copies_));
        !status.ok())
      return status;
    if (Status status = cuda("copying to the GPU", driver_.stream_synchronize(copies_)); !status.ok())
      return status;
  }
  operation.host_out = request.out;
  operation.from = {to.at, out_bytes};
  *in = reinterpret_cast<const void*>(from.at);  // NOLINT(performance-no-int-to-ptr): CUDA's own convention
  *out = reinterpret_cast<void*>(to.at);         // NOLINT(performance-no-int-to-ptr)
  return {};
}

Status Engine::enqueue(Channel& channel, const Collective& request, Operation& operation) {
  if (Status status = cuda("cuCtxSetCurrent", driver_.context_set(context_)); !status.ok()) return status;
  if (Status status = take_event(channel, &operation.done); !status.ok()) return status;
  const void* in = request.in;
  void* out = request.out;
  if (channel.on_device) {
    if (Status status = cuda("cuEventRecord", driver_.event_record(channel.before, channel.caller));
        !status.ok())
      return status;
    if (Status status =
            cuda("cuStreamWaitEvent", driver_.stream_wait_event(channel.stream, channel.before, 0));
        !status.ok())
      return status;
  } else if (request.kind != Kind::kBarrier) {
    if (Status status = stage(channel, request, operation, &in, &out); !status.ok()) return status;
  }
  const size_t count = request.count;
  Result result = kSuccess;
  switch (request.kind) {
    case Kind::kAllGather:
      operation.name = "all_gather";
      result = nccl_.all_gather(in, out, count, kUint8, channel.comm, channel.stream);
      break;
    case Kind::kReduceScatter:
      operation.name = "reduce_scatter";
      result = nccl_.reduce_scatter(in, out, count, kFloat32, kSum, channel.comm, channel.stream);
      break;
    case Kind::kReduceScatterBf16:
      operation.name = "reduce_scatter";
      result = nccl_.reduce_scatter(in, out, count, kBfloat16, kSum, channel.comm, channel.stream);
      break;
    case Kind::kAllReduceBf16:
      operation.name = "all_reduce";
      result = nccl_.all_reduce(in, out, count, kBfloat16, kSum, channel.comm, channel.stream);
      break;
    case Kind::kAllReduceFloat:
      operation.name = "all_reduce";
      result = nccl_.all_reduce(in, out, count, kFloat32, kSum, channel.comm, channel.stream);
      break;
    case Kind::kAllReduceDouble:
      operation.name = "all_reduce";
      result = nccl_.all_reduce(in, out, count, kFloat64, kSum, channel.comm, channel.stream);
      break;
    case Kind::kBroadcast:
      operation.name = "broadcast";
      result = nccl_.broadcast(in, out, count, kUint8, static_cast<int>(request.root), channel.comm,
                               channel.stream);
      break;
    case Kind::kAllToAll:  // not in its table
      return {SHARDRUN_COMM_UNSUPPORTED, "the nccl plugin has no all-to-all"};
    case Kind::kBarrier: {
      operation.name = "barrier";
      void* token = reinterpret_cast<void*>(channel.token.at);  // NOLINT(performance-no-int-to-ptr)
      result = nccl_.all_reduce(token, token, 1, kFloat32, kSum, channel.comm, channel.stream);
      break;
    }
  }
  if (result == kSuccess || result == kInProgress) return {};
  const int32_t code =
      result == kInvalidArgument || result == kInvalidUsage ? SHARDRUN_COMM_INVALID : SHARDRUN_COMM_IO;
  return {code, fmt::format("{} #{} on channel {}: {}", operation.name, operation.ticket, channel.id,
                            nccl_.describe(result, channel.comm))};
}

Status Engine::timed_out(const Channel& channel, const Operation& operation,
                         std::chrono::milliseconds timeout) {
  return {SHARDRUN_COMM_TIMEOUT,
          fmt::format(
              "{} #{} on channel {} is not complete after {} ms: {} did not take part, or the GPU is late",
              operation.name, operation.ticket, channel.id, timeout.count(), others_text(channel)),
          others(channel)};
}

Status Engine::wait(Channel& channel, uint64_t ticket, std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  if (ticket == 0 || ticket > channel.posted)
    return {SHARDRUN_COMM_INVALID, fmt::format("channel {} has no operation #{}", channel.id, ticket)};
  if (!failure_.ok()) return failed(lock);
  const auto operation = std::find_if(channel.operations.begin(), channel.operations.end(),
                                      [&](const Operation& other) { return other.ticket == ticket; });
  if (operation == channel.operations.end() || operation->waited) return {};
  const auto deadline = Clock::now() + timeout;
  for (Nap nap;; nap.take(lock)) {
    if (Status status = poll(channel); !status.ok()) return failed(lock);
    if (operation->recorded) break;
    if (Clock::now() < deadline) continue;
    (void)fail(timed_out(channel, *operation, timeout));
    return failed(lock);
  }
  if (!channel.on_device) return wait_on_host(lock, channel, operation, deadline, timeout);
  if (Status status =
          cuda("cuStreamWaitEvent", driver_.stream_wait_event(channel.caller, operation->done, 0));
      !status.ok()) {
    (void)fail(std::move(status));
    return failed(lock);
  }
  operation->waited = true;
  operation->deadline = deadline;
  changed_.notify_all();
  return {};
}

Status Engine::wait_on_host(Lock& lock, Channel& channel, std::list<Operation>::iterator operation,
                            Clock::time_point deadline, std::chrono::milliseconds timeout) {
  (void)driver_.context_set(context_);
  for (Nap nap;; nap.take(lock)) {
    if (Status status = poll(channel); !status.ok()) return failed(lock);
    const CuResult state = driver_.event_query(operation->done);
    if (state == kCuSuccess) break;
    if (state != kCuNotReady) {
      (void)fail(cuda("cuEventQuery", state));
      return failed(lock);
    }
    if (Clock::now() < deadline) continue;
    (void)fail(timed_out(channel, *operation, timeout));
    return failed(lock);
  }
  if (operation->from.bytes > 0) {
    Status status = cuda("cuMemcpyDtoHAsync", driver_.copy_out(operation->host_out, operation->from.at,
                                                               operation->from.bytes, copies_));
    if (status.ok()) status = cuda("copying from the GPU", driver_.stream_synchronize(copies_));
    if (!status.ok()) {
      (void)fail(std::move(status));
      return failed(lock);
    }
  }
  recycle(channel, operation);
  return {};
}

void Engine::recycle(Channel& channel, std::list<Operation>::iterator operation) {
  channel.spare_events.push_back(operation->done);
  channel.spare_blocks.insert(channel.spare_blocks.end(), operation->blocks.begin(), operation->blocks.end());
  channel.operations.erase(operation);
}

void Engine::watch() {
  Lock lock(mutex_);
  (void)driver_.context_set(context_);
  while (!stopping_) {
    bool busy = false;
    for (auto& [id, channel] : channels_) {
      if (!failure_.ok()) break;
      if (channel->closing || (channel->operations.empty() && !channel->connecting)) continue;
      busy = true;
      watch_channel(*channel);
    }
    if (busy) {
      changed_.wait_for(lock, kWatchTime);
    } else {
      changed_.wait(lock);
    }
  }
}

void Engine::watch_channel(Channel& channel) {
  if (!poll(channel).ok()) return;
  while (!channel.operations.empty() && channel.operations.front().waited) {
    const auto oldest = channel.operations.begin();
    const CuResult state = driver_.event_query(oldest->done);
    if (state == kCuNotReady) {
      if (Clock::now() >= oldest->deadline) (void)fail(timed_out(channel, *oldest, timeout_));
      return;
    }
    if (state != kCuSuccess) {
      (void)fail(cuda("cuEventQuery", state));
      return;
    }
    recycle(channel, oldest);
  }
}

}  // namespace shardrun::nccl
