#include "plugins/nccl/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "plugins/nccl/efa.h"
#include "plugins/nccl/nap.h"

namespace shardrun::nccl {
namespace {

constexpr std::chrono::seconds kHaltTime{5};  // NCCL must come back from an abort within it
// in which a communicator must finish its remaining work before it is aborted
constexpr std::chrono::seconds kCloseTime{10};
// The number of channels assumed for a caller that does not say it. It is prime, because ids are assigned by
// remainders.
constexpr uint32_t kUsualChannels = 11;
constexpr uint32_t kMostIds = 24;

}  // namespace

Status Engine::open(const OpenOptions& options, std::unique_ptr<Engine>* engine) {
  auto opened = std::unique_ptr<Engine>(new Engine());
  opened->timeout_ = options.timeout;
  if (!options.interface_name.empty())
    return {SHARDRUN_COMM_INVALID,
            "NCCL chooses network interfaces by itself: set NCCL_SOCKET_IFNAME instead"};
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
      return {status.code, rank_text(rank) + ": " + status.text, {rank}};
    }
    if (address.nccl_version != nccl_.version) {
      return {SHARDRUN_COMM_INVALID,
              fmt::format("{} has NCCL {}, {} has {}: all ranks need the same", rank_text(rank),
                          version_text(address.nccl_version), rank_text(global_rank_),
                          version_text(nccl_.version)),
              {rank}};
    }
  }
  watcher_ = std::thread([this] { watch(); });
  return {};
}

std::string Engine::rank_text(uint32_t global_rank) const {
  return fmt::format("rank {} (node {})", global_rank, peers_[global_rank].node_name);
}

std::vector<uint32_t> Engine::others(const Channel& channel) const {
  std::vector<uint32_t> ranks = channel.ranks;
  ranks.erase(std::remove(ranks.begin(), ranks.end(), global_rank_), ranks.end());
  return ranks;
}

std::string Engine::others_text(const Channel& channel) const {
  constexpr size_t kShown = 16;
  std::string text;
  size_t shown = 0;
  for (const uint32_t rank : others(channel)) {
    if (++shown > kShown) continue;
    text += (text.empty() ? "" : ", ") + rank_text(rank);
  }
  if (shown > kShown) text += fmt::format(" and {} more", shown - kShown);
  return shown > 1 ? "one of " + text : shown == 1 ? text : "nobody else";
}

Status Engine::cuda(const char* call, CuResult result) const {
  if (result == kCuSuccess) return {};
  return {SHARDRUN_COMM_IO, driver_.describe(call, result)};
}

// The first failure is final. Aborting may take long and must not be waited for with the mutex held.
Status Engine::fail(Status failure) {
  if (!failure_.ok()) return failure_;
  failure_ = std::move(failure);
  std::vector<Comm*> comms;
  for (auto& [id, channel] : channels_) {
    if (channel->comm != nullptr) comms.push_back(std::exchange(channel->comm, nullptr));
  }
  // What an abort frees may wait for all that the GPU runs, and another communicator's kernel ends only when that one is
  // aborted, too: all at once.
  aborter_ = std::thread([this, comms = std::move(comms)] {
    std::vector<std::thread> each;
    for (Comm* comm : comms) {
      each.emplace_back([this, comm] {
        (void)driver_.context_set(context_);
        (void)nccl_.comm_abort(comm);
      });
    }
    for (std::thread& one : each) one.join();
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
    return fail({code,
                 fmt::format("{} on channel {} with {}: {}", what, channel.id, others_text(channel),
                             nccl_.describe(result, channel.comm)),
                 others(channel)});
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

// Waits until `blocker` is false.
Status Engine::until(Lock& lock, Channel& channel, const bool& blocker, Clock::time_point deadline,
                     const std::string& what) {
  for (Nap nap; blocker; nap.take(lock)) {
    if (Status status = poll(channel); !status.ok()) return failed(lock);
    if (!blocker) break;
    if (Clock::now() < deadline) continue;
    (void)fail({SHARDRUN_COMM_TIMEOUT,
                fmt::format("{}: {} did not answer in time", what, others_text(channel)), others(channel)});
    return failed(lock);
  }
  return failure_.ok() ? Status{} : failed(lock);
}

Status Engine::open_channel(uint32_t id, std::vector<uint32_t> ranks, Channel** out,
                            const DeviceStream* caller) {
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
  // Communicators are created one after the other: what a new one sets up could wait for the kernels of an older one.
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
  // NCCL lays dozens of channels within one GPU, of several pages of 2 MiB each, for a group that has nobody to talk to.
  if (channel.ranks.size() == 1) config.max_ctas = 1;
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

void Engine::abort(const std::string& reason) {
  const std::lock_guard guard(mutex_);
  const std::string who = peers_.empty() ? "this rank" : rank_text(global_rank_);
  (void)fail({SHARDRUN_COMM_ABORTED, fmt::format("{} aborted: {}", who, reason), {global_rank_}});
}

void Engine::close_channel(Channel* channel) {
  Lock lock(mutex_);
  channel->closing = true;
  for (const Operation& operation : channel->operations) {
    if (operation.waited) continue;
    (void)fail({SHARDRUN_COMM_PEER_LOST,
                fmt::format("{} left with {} #{} in flight", rank_text(global_rank_), operation.name,
                            operation.ticket),
                {global_rank_}});
    break;
  }
  if (failure_.ok()) finalize(lock, *channel);
  if (!failure_.ok()) (void)failed(lock);
  if (failure_.ok() || aborted_) free_resources(*channel);  // otherwise the GPU may still use them
  channels_.erase(channel->id);
}

// Ends a communicator that nobody uses any more, and aborts it if it does not end in time.
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
