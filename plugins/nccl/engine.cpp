#include "plugins/nccl/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "plugins/nccl/efa.h"

namespace shardrun::nccl {
namespace {

constexpr std::chrono::seconds kHaltTime{5};    // for NCCL to come back from an abort
constexpr std::chrono::seconds kCloseTime{10};  // for what a communicator still has to do before it goes
constexpr std::chrono::milliseconds kWatchTime{10};
// Channels of a caller that does not say how many it will open. Prime: ids are handed out by remainders.
constexpr uint32_t kUsualChannels = 11;
constexpr uint32_t kMostIds = 24;

// Pauses that grow: most answers come at once.
class Nap {
 public:
  void take(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::this_thread::sleep_for(length_);
    lock.lock();
    length_ = std::min(length_ * 2, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds length_{5};
};

}  // namespace

Status Engine::open(const OpenOptions& options, std::unique_ptr<Engine>* engine) {
  auto opened = std::unique_ptr<Engine>(new Engine());
  opened->timeout_ = options.timeout;
  int devices = 0;
  if (Status status = load_nccl(&opened->nccl_); !status.ok()) return status;
  if (Status status = load_driver(&opened->driver_, &devices); !status.ok()) return status;
  if (Status status = opened->choose_device(options, devices); !status.ok()) return status;
  if (Status status = opened->choose_network(options); !status.ok()) return status;
  if (Status status = opened->make_ids(options.channel_count); !status.ok()) return status;
  *engine = std::move(opened);
  return {};
}

Status Engine::choose_device(const OpenOptions& options, int devices) {
  int index = options.device_index;
  if (index < 0) index = devices == 1 ? 0 : static_cast<int>(options.local_rank);
  if (index >= devices) {
    return {
        SHARDRUN_COMM_INVALID,
        fmt::format(
            "rank {} of this node would use GPU {}, and {} can be seen: start as many ranks as GPUs, or look "
            "at CUDA_VISIBLE_DEVICES",
            options.local_rank, index, devices)};
  }
  if (Status status = cuda("cuDeviceGet", driver_.device(&device_, index)); !status.ok()) return status;
  if (Status status = cuda("cuDevicePrimaryCtxRetain", driver_.primary_retain(&context_, device_));
      !status.ok())
    return status;
  if (Status status = cuda("cuCtxSetCurrent", driver_.context_set(context_)); !status.ok()) return status;
  return cuda("cuStreamCreate", driver_.stream_create(&copies_, kStreamNonBlocking, 0));
}

Status Engine::choose_network(const OpenOptions& options) {
  provider_ = "nccl " + version_text(nccl_.version);
  if (std::getenv("NCCL_COMM_ID") != nullptr) {
    return {SHARDRUN_COMM_INVALID,
            "NCCL_COMM_ID is set, and would give all communicators one meeting place: unset it"};
  }
  const std::string& wanted = options.provider;
  if (wanted == "socket") network_ = "Socket";
  if (wanted == "ib") network_ = "IB";
  if (!network_.empty()) {
    provider_ += " over " + network_;
    return {};
  }
  if (wanted != "auto" && wanted != "efa") {
    return {SHARDRUN_COMM_UNSUPPORTED,
            fmt::format("plugin nccl has no provider \"{}\"; there are auto, efa, ib and socket", wanted)};
  }
  const bool efa = has_efa("");
  if (wanted == "efa" && !efa)
    return {SHARDRUN_COMM_UNSUPPORTED,
            "provider efa: this machine has no EFA device (/sys/class/infiniband)"};
  if (!efa || options.node_count == 1) return {};
  const char* name = std::getenv("NCCL_NET_PLUGIN");
  const std::string plugin_name = name == nullptr ? "" : name;
  const OfiPlugin plugin = find_ofi_plugin(plugin_name);
  if (std::string complaint = complaint_about(plugin, plugin_name); !complaint.empty())
    return {SHARDRUN_COMM_UNSUPPORTED, std::move(complaint)};
  network_ = network_name(plugin.version);
  provider_ += fmt::format(" over aws-ofi-nccl {}", plugin.version);
  return {};
}

Status Engine::make_ids(uint32_t channel_count) {
  address_.nccl_version = nccl_.version;
  address_.ids.resize(channel_count == 0 ? kUsualChannels : std::min(channel_count, kMostIds));
  for (UniqueId& id : address_.ids) {
    if (const Result result = nccl_.get_unique_id(&id); result != kSuccess)
      return {SHARDRUN_COMM_IO, "ncclGetUniqueId: " + nccl_.describe(result, nullptr)};
  }
  packed_address_ = pack(address_);
  return {};
}

Engine::~Engine() {
  if (copies_ != nullptr) (void)driver_.stream_destroy(copies_);
  if (context_ != nullptr) (void)driver_.primary_release(device_);
}

Status Engine::connect(uint32_t global_rank, std::vector<Peer> peers) {
  global_rank_ = global_rank;
  peers_ = std::move(peers);
  addresses_.resize(peers_.size());
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    RankAddress& address = addresses_[rank];
    if (Status status = unpack(peers_[rank].address, &address); !status.ok()) {
      status.text = rank_text(rank) + ": " + status.text;
      return status;
    }
    if (address.nccl_version != nccl_.version) {
      return {SHARDRUN_COMM_INVALID, fmt::format("{} has NCCL {}, {} has {}: all ranks need the same",
                                                 rank_text(rank), version_text(address.nccl_version),
                                                 rank_text(global_rank_), version_text(nccl_.version))};
    }
  }
  watcher_ = std::thread([this] { watch(); });
  return {};
}

std::string Engine::rank_text(uint32_t global_rank) const {
  return fmt::format("rank {} (node {})", global_rank, peers_[global_rank].node_name);
}

std::string Engine::others_text(const Channel& channel) const {
  constexpr size_t kShown = 16;
  std::string text;
  size_t shown = 0;
  for (const uint32_t rank : channel.ranks) {
    if (rank == global_rank_ || ++shown > kShown) continue;
    text += (text.empty() ? "" : ", ") + rank_text(rank);
  }
  if (shown > kShown) text += fmt::format(" and {} more", shown - kShown);
  return shown > 1 ? "one of " + text : shown == 1 ? text : "nobody else";
}

Status Engine::cuda(const char* call, CuResult result) const {
  if (result == kCuSuccess) return {};
  return {SHARDRUN_COMM_IO, driver_.describe(call, result)};
}

// The first is final. Aborting may take long, and must not be waited for with the mutex held.
Status Engine::fail(Status failure) {
  if (!failure_.ok()) return failure_;
  failure_ = std::move(failure);
  std::vector<Comm*> comms;
  for (auto& [id, channel] : channels_) {
    if (channel->comm != nullptr) comms.push_back(std::exchange(channel->comm, nullptr));
  }
  aborter_ = std::thread([this, comms = std::move(comms)] {
    (void)driver_.context_set(context_);
    for (Comm* comm : comms) (void)nccl_.comm_abort(comm);
    const std::lock_guard guard(mutex_);
    aborted_ = true;
    changed_.notify_all();
  });
  changed_.notify_all();
  return failure_;
}

Status Engine::failed(Lock& lock) {
  changed_.wait_for(lock, kHaltTime, [this] { return aborted_; });
  return failure_;
}

// Asks NCCL what has become of the channel's newest call.
Status Engine::poll(Channel& channel) {
  if (!failure_.ok()) return failure_;
  Result state = kSuccess;
  Result result = nccl_.comm_get_async_error(channel.comm, &state);
  if (result == kSuccess) result = state;
  if (result == kInProgress) return {};
  if (result != kSuccess) {
    const int32_t code = result == kRemoteError ? SHARDRUN_COMM_PEER_LOST : SHARDRUN_COMM_IO;
    const std::string what = channel.connecting           ? "connecting"
                             : channel.operations.empty() ? "between operations"
                                                          : channel.operations.back().name;
    return fail({code, fmt::format("{} on channel {} with {}: {}", what, channel.id, others_text(channel),
                                   nccl_.describe(result, channel.comm))});
  }
  channel.connecting = false;
  if (channel.operations.empty() || channel.operations.back().recorded) return {};
  Operation& newest = channel.operations.back();
  (void)driver_.context_set(context_);
  if (Status status = cuda("cuEventRecord", driver_.event_record(newest.done, channel.stream)); !status.ok())
    return fail(std::move(status));
  newest.recorded = true;
  return {};
}

// Until `blocker` is false.
Status Engine::until(Lock& lock, Channel& channel, const bool& blocker, Clock::time_point deadline,
                     const std::string& what) {
  for (Nap nap; blocker; nap.take(lock)) {
    if (Status status = poll(channel); !status.ok()) return failed(lock);
    if (!blocker) break;
    if (Clock::now() < deadline) continue;
    (void)fail(
        {SHARDRUN_COMM_TIMEOUT, fmt::format("{}: {} did not answer in time", what, others_text(channel))});
    return failed(lock);
  }
  return failure_.ok() ? Status{} : failed(lock);
}

Status Engine::open_channel(uint32_t id, std::vector<uint32_t> ranks, const DeviceStream* caller,
                            Channel** out) {
  Lock lock(mutex_);
  if (!failure_.ok()) return failed(lock);
  if (ranks.empty()) {
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) ranks.push_back(rank);
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), global_rank_);
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (id > 254 || channels_.count(id) != 0 || mine == ranks.end() || !ascending ||
      ranks.back() >= peers_.size())
    return {SHARDRUN_COMM_INVALID,
            fmt::format("channel {} is in use, or its group is no group of this rank's", id)};
  // Communicators are made one after the other: what a new one sets up could wait for an old one's kernels.
  for (auto& [other_id, other] : channels_) {
    if (Status status = until(lock, *other, other->connecting, Clock::now() + timeout_,
                              fmt::format("connecting channel {} within {} ms", other_id, timeout_.count()));
        !status.ok())
      return status;
  }
  auto channel = std::make_unique<Channel>();
  channel->engine = this;
  channel->id = id;
  channel->index = static_cast<uint32_t>(mine - ranks.begin());
  channel->ranks = std::move(ranks);
  channel->on_device = caller != nullptr;
  if (caller != nullptr) channel->caller = caller->stream;
  Status status = make_resources(*channel);
  if (status.ok()) status = make_communicator(*channel);
  if (!status.ok()) {
    free_resources(*channel);
    return status;
  }
  *out = channel.get();
  channels_[id] = std::move(channel);
  changed_.notify_all();
  return {};
}

Status Engine::make_resources(Channel& channel) {
  if (Status status = cuda("cuCtxSetCurrent", driver_.context_set(context_)); !status.ok()) return status;
  int least = 0, greatest = 0;
  (void)driver_.priority_range(&least, &greatest);
  if (Status status =
          cuda("cuStreamCreate", driver_.stream_create(&channel.stream, kStreamNonBlocking, greatest));
      !status.ok())
    return status;
  if (Status status = cuda("cuEventCreate", driver_.event_create(&channel.before, kEventDisableTiming));
      !status.ok())
    return status;
  return take_block(channel, 256, &channel.token);
}

Status Engine::make_communicator(Channel& channel) {
  const uint32_t first = channel.ranks.front();
  const std::vector<UniqueId>& ids = addresses_[first].ids;
  const size_t number = channel.id % ids.size();
  if (first == global_rank_ && !used_ids_.insert(number).second) {
    return {
        SHARDRUN_COMM_INVALID,
        fmt::format(
            "channel {} would meet where another one of this rank's has met: NCCL needs a new id for each, "
            "and an address holds {}",
            channel.id, ids.size())};
  }
  Config config;
  config.blocking = 0;
  if (!network_.empty()) config.net_name = network_.c_str();
  const Result result = nccl_.comm_init_rank_config(&channel.comm, static_cast<int>(channel.ranks.size()),
                                                    ids[number], static_cast<int>(channel.index), &config);
  if (result == kSuccess || result == kInProgress) return {};
  return fail({SHARDRUN_COMM_IO, fmt::format("ncclCommInitRankConfig for channel {}: {}", channel.id,
                                             nccl_.describe(result, channel.comm))});
}

Status Engine::take_block(Channel& channel, size_t bytes, Block* block) {
  auto best = channel.spare_blocks.end();
  for (auto spare = channel.spare_blocks.begin(); spare != channel.spare_blocks.end(); ++spare) {
    if (spare->bytes >= bytes && (best == channel.spare_blocks.end() || spare->bytes < best->bytes))
      best = spare;
  }
  if (best != channel.spare_blocks.end()) {
    *block = *best;
    channel.spare_blocks.erase(best);
    return {};
  }
  block->bytes = std::max<size_t>(bytes, 256);
  return cuda(fmt::format("{} bytes of the GPU's memory", block->bytes).c_str(),
              driver_.allocate(&block->at, block->bytes));
}

Status Engine::take_event(Channel& channel, CuEvent** event) {
  if (channel.spare_events.empty())
    return cuda("cuEventCreate", driver_.event_create(event, kEventDisableTiming));
  *event = channel.spare_events.back();
  channel.spare_events.pop_back();
  return {};
}

Status Engine::start(Channel& channel, const Request& request, uint64_t* ticket) {
  Lock lock(mutex_);
  if (!failure_.ok()) return failed(lock);
  const auto deadline = Clock::now() + timeout_;
  const auto in_time = fmt::format("within {} ms", timeout_.count());
  if (Status status = until(lock, channel, channel.connecting, deadline,
                            fmt::format("connecting channel {} {}", channel.id, in_time));
      !status.ok())
    return status;
  // NCCL takes the next call only when it has put the one before on the stream, for which it may need the others.
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

// The device's copies of an operation's buffers in the host's memory.
Status Engine::stage(Channel& channel, const Request& request, Operation& operation, const void** in,
                     void** out) {
  const uint64_t ranks = channel.ranks.size();
  uint64_t in_bytes = request.count, out_bytes = request.count;  // of a broadcast
  if (request.kind == Kind::kAllGather) out_bytes *= ranks;
  if (request.kind == Kind::kAllReduceFloat) in_bytes = out_bytes = request.count * sizeof(float);
  if (request.kind == Kind::kAllReduceDouble) in_bytes = out_bytes = request.count * sizeof(double);
  if (request.kind == Kind::kReduceScatter) {
    out_bytes *= sizeof(float);
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

Status Engine::enqueue(Channel& channel, const Request& request, Operation& operation) {
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
              operation.name, operation.ticket, channel.id, timeout.count(), others_text(channel))};
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

void Engine::abort(const std::string& reason) {
  const std::lock_guard guard(mutex_);
  const std::string who = peers_.empty() ? "this rank" : rank_text(global_rank_);
  (void)fail({SHARDRUN_COMM_ABORTED, fmt::format("{} aborted: {}", who, reason)});
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

void Engine::close_channel(Channel* channel) {
  Lock lock(mutex_);
  channel->closing = true;
  for (const Operation& operation : channel->operations) {
    if (operation.waited) continue;
    (void)fail({SHARDRUN_COMM_PEER_LOST, fmt::format("{} left with {} #{} in flight", rank_text(global_rank_),
                                                     operation.name, operation.ticket)});
    break;
  }
  if (failure_.ok()) finalize(lock, *channel);
  if (!failure_.ok()) (void)failed(lock);
  if (failure_.ok() || aborted_) free_resources(*channel);  // else the GPU may still use them
  channels_.erase(channel->id);
}

// Ends a communicator that nobody uses any more; one that does not end in time is aborted.
void Engine::finalize(Lock& lock, Channel& channel) {
  (void)driver_.context_set(context_);
  Result state = channel.connecting ? kInternalError : nccl_.comm_finalize(channel.comm);
  const auto deadline = Clock::now() + kCloseTime;
  for (Nap nap; state == kInProgress && Clock::now() < deadline; nap.take(lock)) {
    if (!failure_.ok()) return;
    if (nccl_.comm_get_async_error(channel.comm, &state) != kSuccess) break;
  }
  if (!failure_.ok()) return;
  Comm* comm = std::exchange(channel.comm, nullptr);
  (void)(state == kSuccess ? nccl_.comm_destroy(comm) : nccl_.comm_abort(comm));
}

void Engine::free_resources(Channel& channel) {
  (void)driver_.context_set(context_);
  for (Operation& operation : channel.operations) {
    channel.spare_events.push_back(operation.done);
    channel.spare_blocks.insert(channel.spare_blocks.end(), operation.blocks.begin(), operation.blocks.end());
  }
  for (CuEvent* event : channel.spare_events) (void)driver_.event_destroy(event);
  for (const Block& block : channel.spare_blocks) (void)driver_.free(block.at);
  if (channel.token.at != 0) (void)driver_.free(channel.token.at);
  if (channel.before != nullptr) (void)driver_.event_destroy(channel.before);
  if (channel.stream != nullptr) (void)driver_.stream_destroy(channel.stream);
}

bool Engine::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (!failure_.ok() && !changed_.wait_for(lock, kHaltTime, [this] { return aborted_; })) return false;
  }
  if (watcher_.joinable()) watcher_.join();
  if (aborter_.joinable()) aborter_.join();
  return true;
}

}  // namespace shardrun::nccl
