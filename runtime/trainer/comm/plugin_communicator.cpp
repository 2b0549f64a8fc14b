#include "runtime/trainer/comm/plugin_communicator.h"

#include <fmt/format.h>

#include <algorithm>

#include "plugins/abi/comm_v1.h"
#include "runtime/base/plugin_host.h"

namespace shardrun::comm {

using base::Code;
using base::Error;

struct PluginSession::Shared {
  explicit Shared(base::Plugin loaded)
      : plugin(std::move(loaded)), table(plugin.table<shardrun_comm_v1_table>()) {}
  ~Shared() {
    if (context != nullptr) table.close(context);
  }

  // Returns success, or the plugin's words under our code.
  Result<void> check(int32_t status) const {
    if (status == SHARDRUN_COMM_OK) return {};
    Error error(code_of(status), table.last_error());
    if (table.header.struct_size <= SHARDRUN_COMM_V1_TABLE_OF_MINOR_1) return error;
    const uint32_t* ranks = nullptr;
    const uint32_t count = table.last_error_ranks(&ranks);
    return std::move(error).about(std::vector<int>(ranks, ranks + count));
  }

  static Code code_of(int32_t status) {
    switch (status) {
      case SHARDRUN_COMM_INVALID:
        return Code::kInvalid;
      case SHARDRUN_COMM_UNSUPPORTED:
        return Code::kUnsupported;
      case SHARDRUN_COMM_TIMEOUT:
        return Code::kTimeout;
      case SHARDRUN_COMM_PEER_LOST:
        return Code::kPeerLost;
      case SHARDRUN_COMM_MISMATCH:
        return Code::kCorrupt;
      case SHARDRUN_COMM_ABORTED:
        return Code::kCancelled;
      default:
        return Code::kIo;
    }
  }

  base::Plugin plugin;
  const shardrun_comm_v1_table& table;
  shardrun_comm_context* context = nullptr;
  uint64_t timeout_ms = 0;
  int global_rank = 0;
  int world_size = 0;
};

class PluginCommunicator final : public Communicator {
 public:
  using Shared = PluginSession::Shared;
  PluginCommunicator(std::shared_ptr<Shared> shared, shardrun_comm_channel* channel, int rank, int size)
      : shared_(std::move(shared)), channel_(channel), rank_(rank), size_(size) {}
  ~PluginCommunicator() override { shared_->table.channel_close(channel_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    SHARDRUN_CHECK(all.size() == mine.size() * static_cast<size_t>(size_), "all_gather: sizes");
    return started([&](uint64_t* ticket) {
      return shared_->table.all_gather(channel_, mine.data(), mine.size(), all.data(), ticket);
    });
  }
  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    SHARDRUN_CHECK(full.size() == mine.size() * static_cast<size_t>(size_), "reduce_scatter: sizes");
    return started([&](uint64_t* ticket) {
      return shared_->table.reduce_scatter(channel_, full.data(), mine.size(), mine.data(), ticket);
    });
  }
  Result<Pending> reduce_scatter(std::span<const Bf16> full, std::span<Bf16> mine) override {
    SHARDRUN_CHECK(full.size() == mine.size() * static_cast<size_t>(size_), "reduce_scatter: sizes");
    RETURN_IF_ERROR(check_sums_bf16());
    return started([&](uint64_t* ticket) {
      return shared_->table.reduce_scatter_of(channel_, full.data(), mine.size(), SHARDRUN_COMM_BF16,
                                              mine.data(), ticket);
    });
  }
  Result<Pending> all_reduce(std::span<Bf16> buffer) override {
    RETURN_IF_ERROR(check_sums_bf16());
    return started([&](uint64_t* ticket) {
      return shared_->table.all_reduce(channel_, buffer.data(), buffer.size(), SHARDRUN_COMM_BF16, ticket);
    });
  }
  Result<Pending> all_reduce(std::span<float> buffer) override {
    return started([&](uint64_t* ticket) {
      return shared_->table.all_reduce(channel_, buffer.data(), buffer.size(), SHARDRUN_COMM_FP32, ticket);
    });
  }
  Result<Pending> all_reduce(std::span<double> buffer) override {
    return started([&](uint64_t* ticket) {
      return shared_->table.all_reduce(channel_, buffer.data(), buffer.size(), SHARDRUN_COMM_FP64, ticket);
    });
  }
  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return started([&](uint64_t* ticket) {
      return shared_->table.broadcast(channel_, buffer.data(), buffer.size(), static_cast<uint32_t>(root),
                                      ticket);
    });
  }
  Result<Pending> barrier() override {
    return started([&](uint64_t* ticket) { return shared_->table.barrier(channel_, ticket); });
  }
  Result<Pending> all_to_all(const Parts& parts) override {
    const auto count = static_cast<size_t>(size_);
    SHARDRUN_CHECK(parts.send_bytes.size() == count && parts.receive_bytes.size() == count,
                   "all_to_all: sizes");
    const auto& table = shared_->table;
    if (table.header.struct_size <= SHARDRUN_COMM_V1_TABLE_OF_MINOR_3 || table.all_to_all == nullptr)
      return Error(Code::kUnsupported, fmt::format("plugin {} has no all-to-all", table.header.name));
    const std::vector<uint64_t> send(parts.send_bytes.begin(), parts.send_bytes.end());
    const std::vector<uint64_t> receive(parts.receive_bytes.begin(), parts.receive_bytes.end());
    return started([&](uint64_t* ticket) {
      return table.all_to_all(channel_, parts.send.data(), send.data(), parts.receive.data(), receive.data(),
                              ticket);
    });
  }
  Result<void> wait(Pending pending) override {
    return shared_->check(shared_->table.wait(channel_, pending.ticket, shared_->timeout_ms));
  }
  void abort(const std::string& reason) override { shared_->table.abort(shared_->context, reason.c_str()); }

 private:
  Result<void> check_sums_bf16() const {
    const auto& header = shared_->table.header;
    if (header.struct_size > SHARDRUN_COMM_V1_TABLE_OF_MINOR_4) return {};
    return Error(Code::kUnsupported, fmt::format("plugin {} has no sums in bf16", header.name));
  }

  template <typename Call>
  Result<Pending> started(Call call) {
    Pending pending;
    RETURN_IF_ERROR(shared_->check(call(&pending.ticket)));
    return pending;
  }

  std::shared_ptr<Shared> shared_;
  shardrun_comm_channel* channel_;
  const int rank_, size_;
};

PluginSession::PluginSession(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
PluginSession::PluginSession(PluginSession&&) noexcept = default;
PluginSession& PluginSession::operator=(PluginSession&&) noexcept = default;
PluginSession::~PluginSession() = default;

Result<PluginSession> PluginSession::open(const SessionOptions& options) {
  ASSIGN_OR_RETURN(auto plugin, base::Plugin::open(options.plugin_path,
                                                   {.symbol = SHARDRUN_COMM_V1_SYMBOL,
                                                    .abi_major = SHARDRUN_COMM_ABI_MAJOR,
                                                    .smallest_struct = SHARDRUN_COMM_V1_SMALLEST_TABLE}));
  auto shared = std::make_shared<Shared>(std::move(plugin));
  shared->timeout_ms = static_cast<uint64_t>(options.timeout.count());
  shardrun_comm_config config{};
  config.struct_size = sizeof(config);
  config.local_world_size = static_cast<uint32_t>(options.local_world_size);
  config.local_rank = static_cast<uint32_t>(options.local_rank);
  config.node_count = static_cast<uint32_t>(options.node_count);
  config.provider = options.provider.c_str();
  config.timeout_ms = static_cast<uint32_t>(std::min<int64_t>(options.timeout.count(), UINT32_MAX));
  config.device_index = options.device_index;
  config.channel_count = static_cast<uint32_t>(options.channel_count);
  auto opened = shared->check(shared->table.open(&config, &shared->context));
  if (!opened)
    return std::move(opened).error().context(fmt::format("opening plugin {}", options.plugin_path));
  return PluginSession(std::move(shared));
}

std::string PluginSession::local_address() const {
  const void* address = nullptr;
  uint64_t bytes = 0;
  shared_->table.local_address(shared_->context, &address, &bytes);
  return std::string(static_cast<const char*>(address), bytes);
}

std::string PluginSession::build_id() const {
  return shared_->plugin.header().build_id;
}

Result<void> PluginSession::connect(int global_rank, const std::vector<PeerCard>& cards) {
  std::vector<shardrun_comm_peer> peers;
  for (const PeerCard& card : cards) {
    peers.push_back({card.address.data(), card.address.size(), card.node_name.c_str(), card.node_id});
  }
  RETURN_IF_ERROR(shared_->check(shared_->table.connect(shared_->context, static_cast<uint32_t>(global_rank),
                                                        static_cast<uint32_t>(peers.size()), peers.data())));
  shared_->global_rank = global_rank;
  shared_->world_size = static_cast<int>(peers.size());
  return {};
}

std::string PluginSession::provider() const {
  return shared_->table.provider(shared_->context);
}

bool PluginSession::sums_in_rank_order() const {
  return (shardrun_comm_v1_traits(&shared_->table) & SHARDRUN_COMM_SUMS_IN_RANK_ORDER) != 0;
}

bool PluginSession::takes_device_buffers() const {
  return (shardrun_comm_v1_traits(&shared_->table) & SHARDRUN_COMM_DEVICE_BUFFERS) != 0;
}

Result<std::unique_ptr<Communicator>> PluginSession::communicator(int channel,
                                                                  std::span<const uint32_t> global_ranks) {
  shardrun_comm_channel* opened = nullptr;
  RETURN_IF_ERROR(shared_->check(
      shared_->table.channel_open(shared_->context, static_cast<uint32_t>(channel), global_ranks.data(),
                                  static_cast<uint32_t>(global_ranks.size()), &opened)));
  return wrap(opened, global_ranks);
}

Result<std::unique_ptr<Communicator>> PluginSession::device_communicator(
    int channel, void* stream, std::span<const uint32_t> global_ranks) {
  if (!takes_device_buffers()) {
    return Error(Code::kUnsupported, fmt::format("plugin {} knows only buffers in the host's memory",
                                                 shared_->plugin.header().name));
  }
  shardrun_comm_channel* opened = nullptr;
  RETURN_IF_ERROR(shared_->check(shared_->table.channel_open_on_stream(
      shared_->context, static_cast<uint32_t>(channel), global_ranks.data(),
      static_cast<uint32_t>(global_ranks.size()), stream, &opened)));
  return wrap(opened, global_ranks);
}

std::unique_ptr<Communicator> PluginSession::wrap(shardrun_comm_channel* channel,
                                                  std::span<const uint32_t> global_ranks) const {
  int rank = shared_->global_rank, size = shared_->world_size;
  if (!global_ranks.empty()) {
    size = static_cast<int>(global_ranks.size());
    for (int i = 0; i < size; ++i) {
      if (global_ranks[i] == static_cast<uint32_t>(shared_->global_rank)) rank = i;
    }
  }
  return std::make_unique<PluginCommunicator>(shared_, channel, rank, size);
}

}  // namespace shardrun::comm
