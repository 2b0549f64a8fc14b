#include "runtime/trainer/comm/checked_communicator.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/trainer/comm/forwarding_communicator.h"

namespace shardrun::comm {
namespace {

using base::Code;
using base::Error;

struct Totals {
  double sum = 0.0, size = 0.0;  // of elements, and of their absolute values
};

double as_double(double value) {
  return value;
}
double as_double(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide = 0.0F;
  std::memcpy(&wide, &bits, sizeof(wide));
  return static_cast<double>(wide);
}

template <typename Number>
Totals totals_of(std::span<const std::byte> bytes) {
  Totals totals;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof(number));
    totals.sum += as_double(number);
    totals.size += std::abs(as_double(number));
  }
  return totals;
}

// What elements are summed, and the distance of two neighbours at 1.
struct Element {
  Totals (*totals)(std::span<const std::byte>);
  size_t bytes;
  double unit;
};
template <typename Number>
constexpr double kUnit = std::numeric_limits<Number>::epsilon();
template <>
constexpr double kUnit<Bf16> = 0x1p-7;
template <typename Number>
constexpr Element element() {
  return {totals_of<Number>, sizeof(Number), kUnit<Number>};
}

class CheckedCommunicator : public ForwardingCommunicator {
 public:
  CheckedCommunicator(Communicator& inner, std::string name)
      : ForwardingCommunicator(inner), name_(std::move(name)) {}

  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    Open open;
    open.kind = Kind::kGather;
    open.bytes = all;
    open.own = base::crc32c(mine);
    ASSIGN_OR_RETURN(const auto pending, inner_.all_gather(mine, all));
    open.checksums.resize(static_cast<size_t>(size()));
    return gather_checksums(pending, std::move(open));
  }

  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return scatter(full, mine);
  }
  Result<Pending> reduce_scatter(std::span<const Bf16> full, std::span<Bf16> mine) override {
    return scatter(full, mine);
  }

  Result<Pending> all_reduce(std::span<float> buffer) override { return reduce(buffer); }
  Result<Pending> all_reduce(std::span<double> buffer) override { return reduce(buffer); }
  Result<Pending> all_reduce(std::span<Bf16> buffer) override { return reduce(buffer); }

  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    Open open;
    open.kind = Kind::kBroadcast;
    open.bytes = buffer;
    open.root = root;
    ASSIGN_OR_RETURN(const auto pending, inner_.broadcast(buffer, root));
    open_.emplace(pending.ticket, std::move(open));
    return pending;
  }

  Result<Pending> all_to_all(const Parts& parts) override {
    Open open;
    open.kind = Kind::kAllToAll;
    open.bytes = parts.receive;
    open.part_bytes.assign(parts.receive_bytes.begin(), parts.receive_bytes.end());
    size_t at = 0;
    for (const int64_t bytes : parts.send_bytes) {
      open.own_parts.push_back(base::crc32c(parts.send.subspan(at, static_cast<size_t>(bytes))));
      at += static_cast<size_t>(bytes);
    }
    ASSIGN_OR_RETURN(const auto pending, inner_.all_to_all(parts));
    open.checksums.resize(static_cast<size_t>(size()) * static_cast<size_t>(size()));
    Open& kept = open_.emplace(pending.ticket, std::move(open)).first->second;
    ASSIGN_OR_RETURN(kept.beside, inner_.all_gather(std::as_bytes(std::span(kept.own_parts)),
                                                    std::as_writable_bytes(std::span(kept.checksums))));
    return pending;
  }

  Result<void> wait(Pending pending) override {
    RETURN_IF_ERROR(inner_.wait(pending));
    const auto found = open_.find(pending.ticket);
    if (found == open_.end()) return {};
    const auto node = open_.extract(found);
    Open& open = node.mapped();
    if (open.beside.ticket != 0) RETURN_IF_ERROR(inner_.wait(open.beside));
    switch (open.kind) {
      case Kind::kGather:
        return check_gathered(open);
      case Kind::kReduceScatter:
        return check_sum(open, static_cast<size_t>(rank()));
      case Kind::kAllReduce:
        RETURN_IF_ERROR(check_sum(open, 0));
        return check_same(open, open.bytes, /*root=*/0);
      case Kind::kBroadcast:
        return check_same(open, open.bytes, open.root);
      case Kind::kAllToAll:
        return check_parts(open);
    }
    return {};
  }

 private:
  enum class Kind { kGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
  struct Open {
    Kind kind = Kind::kGather;
    std::span<std::byte> bytes;  // the result
    Element element{};           // of a sum
    int root = 0;
    Pending beside;  // the operation that carries what follows
    uint32_t own = 0;
    std::vector<uint32_t> checksums;
    std::vector<uint32_t> own_parts;  // of an all-to-all: of what each rank is sent
    std::vector<int64_t> part_bytes;  // and what comes from each
    std::vector<Totals> totals;       // of each part, of this rank and then of all
  };

  template <typename Number>
  Result<Pending> scatter(std::span<const Number> full, std::span<Number> mine) {
    Open open;
    open.kind = Kind::kReduceScatter;
    open.bytes = std::as_writable_bytes(mine);
    open.element = element<Number>();
    for (int part = 0; part < size(); ++part)
      open.totals.push_back(totals_of<Number>(
          std::as_bytes(full.subspan(static_cast<size_t>(part) * mine.size(), mine.size()))));
    ASSIGN_OR_RETURN(const auto pending, inner_.reduce_scatter(full, mine));
    return add_totals(pending, std::move(open));
  }

  template <typename Number>
  Result<Pending> reduce(std::span<Number> buffer) {
    Open open;
    open.kind = Kind::kAllReduce;
    open.bytes = std::as_writable_bytes(buffer);
    open.element = element<Number>();
    open.totals = {totals_of<Number>(open.bytes)};
    ASSIGN_OR_RETURN(const auto pending, inner_.all_reduce(buffer));
    return add_totals(pending, std::move(open));
  }

  // What the second operation names must stay where it is: the map does not move it.
  Result<Pending> gather_checksums(Pending pending, Open open) {
    Open& kept = open_.emplace(pending.ticket, std::move(open)).first->second;
    ASSIGN_OR_RETURN(kept.beside, inner_.all_gather(std::as_bytes(std::span(&kept.own, 1)),
                                                    std::as_writable_bytes(std::span(kept.checksums))));
    return pending;
  }

  Result<Pending> add_totals(Pending pending, Open open) {
    Open& kept = open_.emplace(pending.ticket, std::move(open)).first->second;
    static_assert(sizeof(Totals) == 2 * sizeof(double));
    ASSIGN_OR_RETURN(kept.beside,
                     inner_.all_reduce(std::span(&kept.totals.front().sum, 2 * kept.totals.size())));
    return pending;
  }

  Result<void> check_gathered(const Open& open) const {
    const size_t part = open.bytes.size() / static_cast<size_t>(size());
    for (int from = 0; from < size(); ++from) {
      if (base::crc32c(open.bytes.subspan(static_cast<size_t>(from) * part, part)) == open.checksums[from])
        continue;
      return Error(Code::kCorrupt,
                   fmt::format("an all-gather of group {}: the {} bytes of its rank {} arrived "
                               "changed at its rank {}",
                               name_, part, from, rank()));
    }
    return {};
  }

  Result<void> check_parts(const Open& open) const {
    size_t at = 0;
    for (int from = 0; from < size(); ++from) {
      const auto bytes = static_cast<size_t>(open.part_bytes[from]);
      if (base::crc32c(open.bytes.subspan(at, bytes)) != open.checksums[from * size() + rank()])
        return Error(Code::kCorrupt, fmt::format("an all-to-all of group {}: the {} bytes that its rank {} "
                                                 "sent arrived changed at its rank {}",
                                                 name_, bytes, from, rank()));
      at += bytes;
    }
    return {};
  }

  // Every addition rounds by half a unit in the last place at most, relative to a partial sum that is no larger than the sum
  // of sizes.
  Result<void> check_sum(const Open& open, size_t part) const {
    const Totals result = open.element.totals(open.bytes);
    const Totals& expected = open.totals[part];
    // What is no number any more, or too large for one, is found by the trainer, which names where it came from.
    if (!std::isfinite(expected.size) || !std::isfinite(result.size)) return {};
    const auto count = static_cast<double>(open.bytes.size() / open.element.bytes);
    // The totals themselves are added up in fp64.
    const double allowed = expected.size * (size() * open.element.unit +
                                            (count + size()) * std::numeric_limits<double>::epsilon()) +
                           count * size() * static_cast<double>(std::numeric_limits<float>::denorm_min());
    if (std::abs(result.sum - expected.sum) <= allowed) return {};
    return Error(
        Code::kCorrupt,
        fmt::format("a sum of group {} is wrong at its rank {}: its {} elements add up to {}, what the ranks "
                    "gave to {}, and rounding explains {}",
                    name_, rank(), count, result.sum, expected.sum, allowed));
  }

  Result<void> check_same(const Open& open, std::span<const std::byte> result, int root) {
    const uint32_t own = base::crc32c(result);
    ASSIGN_OR_RETURN(const auto all, gather_values(inner_, std::vector{own}));
    for (int other = 0; other < size(); ++other) {
      if (all[other] == all[root]) continue;
      return Error(
          Code::kCorrupt,
          fmt::format("{} of group {}: its rank {} has other bytes than its rank {}",
                      open.kind == Kind::kBroadcast ? "a broadcast" : "an all-reduce", name_, other, root));
    }
    return {};
  }

  std::string name_;
  std::map<uint64_t, Open> open_;  // operations in flight, by ticket
};

}  // namespace

std::unique_ptr<Communicator> checked(Communicator& inner, std::string name) {
  return std::make_unique<CheckedCommunicator>(inner, std::move(name));
}

}  // namespace shardrun::comm
