#include "plugins/ofi/operation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugins/ofi/operations.h"

namespace shardrun::ofi {

uint64_t message_of(uint64_t stream_bytes, uint64_t parts, uint64_t least) {
  constexpr uint64_t kLine = 64;
  return std::clamp(stream_bytes / parts, least, kMostMessage) / kLine * kLine;
}

uint32_t Flow::segments() const {
  return static_cast<uint32_t>((total_bytes + segment_bytes - 1) / segment_bytes);
}

uint64_t Flow::complete_bytes() const {
  return std::min(complete * segment_bytes, total_bytes);
}

std::byte* Flow::segment_data(uint32_t segment) const {
  return base + (ring ? segment % window : segment) * segment_bytes;
}

uint64_t Flow::segment_size(uint32_t segment) const {
  return std::min(segment_bytes, total_bytes - segment * segment_bytes);
}

bool Flow::may_post() const {
  return posted < (is_send ? room : segments()) && posted - complete < window &&
         posted * segment_bytes + segment_size(posted) <= limit_bytes;
}

void Flow::mark_complete(uint32_t segment) {
  ahead[segment % window] = true;
  while (complete < posted && ahead[complete % window]) ahead[complete++ % window] = false;
}

Operation::Operation(const Group& group, const OperationId& id, uint32_t kind, uint64_t total)
    : ticket(id.ticket), group_(group), key_(id.key), channel_(id.channel), kind_(kind), total_(total) {}

bool Operation::finished() const {
  return std::all_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.finished(); });
}

std::vector<uint32_t> Operation::awaited() const {
  std::vector<uint32_t> ranks;
  if (region_ == nullptr) {
    for (uint32_t member = 0; waiting_for_ != nullptr && member < near().size(); ++member) {
      if (!waiting_for_->has_opened(member) && member != near_mine()) ranks.push_back(near()[member]);
    }
  } else {
    add_awaited(&ranks);
  }
  for (uint32_t& rank : ranks) rank = group_.global_ranks[rank];
  for (const bool is_send : {false, true}) {
    for (const Flow& flow : flows_) {
      if (flow.is_send == is_send && !flow.finished()) ranks.push_back(flow.global_rank);
    }
    if (!ranks.empty()) break;
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Flow& Operation::add_flow(uint32_t group_rank, bool is_send, uint32_t step, void* base, uint64_t total_bytes,
                          uint64_t segment_bytes, uint64_t limit_bytes, uint32_t window) {
  Flow& flow = flows_.emplace_back();
  flow.global_rank = group_.global_ranks[group_rank];
  flow.is_send = is_send;
  flow.step = step;
  flow.tag = make_tag({key_, channel_, ticket}, kind_, step,
                      is_send ? group_.global_ranks[group_.mine] : flow.global_rank);
  flow.base = static_cast<std::byte*>(base);
  flow.total_bytes = total_bytes;
  flow.segment_bytes = segment_bytes;
  flow.limit_bytes = limit_bytes;
  flow.window = std::max(1u, std::min(window, flow.segments()));
  const uint64_t unasked = kUnaskedBytes / (layout().size() - 1);
  flow.room = total_bytes <= unasked ? flow.segments() : static_cast<uint32_t>(unasked / segment_bytes);
  flow.ahead.resize(flow.window);
  flow.requests.resize(flow.window);
  return flow;
}

uint64_t Operation::reserve_scratch(uint64_t bytes) {
  const uint64_t at = scratch_bytes_;
  scratch_bytes_ += (bytes + 63) / 64 * 64;
  return at;
}

void Operation::put_window_in_scratch(Flow& flow) {
  flow.ring = flow.in_scratch = true;
  flow.scratch_offset = reserve_scratch(std::min(flow.window * flow.segment_bytes, flow.total_bytes));
}

void Operation::use_scratch(std::byte* scratch) {
  for (Flow& flow : flows_) {
    if (flow.in_scratch) flow.base = scratch + flow.scratch_offset;
  }
}

ChunkHead Operation::head(uint64_t offset, uint64_t bytes) const {
  return {.ticket = ticket, .total = total_, .offset = offset, .bytes = bytes, .kind = kind_};
}

bool Operation::is_ours(const ChunkHead& head, uint32_t member, uint64_t limit) {
  const bool ours = head.ticket == ticket && head.kind == kind_ && head.total == total_;
  if (ours && head.bytes <= limit && head.offset <= limit - head.bytes) return true;
  mismatch_ = {near()[member], head.total, total_};
  return false;
}

uint64_t make_tag(const OperationId& id, uint32_t kind, uint32_t step, uint32_t sender_global_rank) {
  const std::array<uint64_t, 4> numbers = {id.ticket, id.channel, uint64_t{kind} << 32 | step,
                                           sender_global_rank};
  const common::Digest digest = id.key({{reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)}});
  uint64_t tag = 0;
  std::memcpy(&tag, digest.data(), sizeof(tag));
  return tag;
}

namespace {

template <typename T>
std::unique_ptr<Operation> make_all_reduce(const Group& group, const OperationId& id, void* buffer,
                                           uint64_t count) {
  T* const values = static_cast<T*>(buffer);
  return is_small_reduce(group, count * sizeof(T)) ? make_small_all_reduce(group, id, values, count)
                                                   : make_sliced_all_reduce(group, id, values, count);
}

}  // namespace

std::unique_ptr<Operation> make_operation(const Group& group, const OperationId& id,
                                          const common::Collective& collective) {
  const auto& [kind, in, out, count, root, in_bytes, out_bytes] = collective;
  std::unique_ptr<Operation> operation;
  const char* name = "";
  switch (kind) {
    case common::Kind::kAllGather:
      operation = is_small_gather(group, count) ? make_small_all_gather(group, id, in, count, out)
                                                : make_all_gather(group, id, in, count, out);
      name = "all-gather";
      break;
    case common::Kind::kReduceScatter:
      operation =
          make_reduce_scatter(group, id, static_cast<const float*>(in), count, static_cast<float*>(out));
      name = "reduce-scatter";
      break;
    case common::Kind::kReduceScatterBf16:
      operation = make_reduce_scatter(group, id, static_cast<const common::Bf16*>(in), count,
                                      static_cast<common::Bf16*>(out));
      name = "reduce-scatter";
      break;
    case common::Kind::kAllReduceBf16:
      operation = make_all_reduce<common::Bf16>(group, id, out, count);
      name = "all-reduce";
      break;
    case common::Kind::kAllReduceFloat:
      operation = make_all_reduce<float>(group, id, out, count);
      name = "all-reduce";
      break;
    case common::Kind::kAllReduceDouble:
      operation = make_all_reduce<double>(group, id, out, count);
      name = "all-reduce";
      break;
    case common::Kind::kBroadcast:
      operation = make_broadcast(group, id, out, count, root);
      name = "broadcast";
      break;
    case common::Kind::kBarrier:
      operation = make_barrier(group, id);
      name = "barrier";
      break;
    case common::Kind::kAllToAll:
      operation = make_all_to_all(group, id, in, in_bytes, out, out_bytes);
      name = "all-to-all";
      break;
  }
  operation->name = name;
  return operation;
}

}  // namespace shardrun::ofi
