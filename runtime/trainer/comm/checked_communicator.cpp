#include "runtime/trainer/comm/checked_communicator.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::comm {
namespace {

using base::Code;
using base::Error;

struct Totals {
  double sum = 0.0, size = 0.0;  // of elements, and of their absolute values
};

template <typename Number>
Totals totals_of(std::span<const Number> values) {
  Totals totals;
  for (const Number value : values) {
    totals.sum += static_cast<double>(value);
    totals.size += std::abs(static_cast<double>(value));
  }
  return totals;
}

class CheckedCommunicator : public Communicator {
 public:
  CheckedCommunicator(Communicator& inner, std::string name) : inner_(inner), name_(std::move(name)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

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
    Open open;
    open.kind = Kind::kReduceScatter;
    open.floats = mine;
    for (int part = 0; part < size(); ++part)
      open.totals.push_back(totals_of(full.subspan(static_cast<size_t>(part) * mine.size(), mine.size())));
    ASSIGN_OR_RETURN(const auto pending, inner_.reduce_scatter(full, mine));
    return add_totals(pending, std::move(open));
  }

  Result<Pending> all_reduce(std::span<float> buffer) override {
    return all_reduce_into(&Open::floats, buffer);
  }
  Result<Pending> all_reduce(std::span<double> buffer) override {
    return all_reduce_into(&Open::doubles, buffer);
  }

  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    Open open;
    open.kind = Kind::kBroadcast;
    open.bytes = buffer;
    open.root = root;
    ASSIGN_OR_RETURN(const auto pending, inner_.broadcast(buffer, root));
    open_.emplace(pending.ticket, std::move(open));
    return pending;
  }

  Result<Pending> barrier() override { return inner_.barrier(); }

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
        return check_same(open, result_bytes(open), /*root=*/0);
      case Kind::kBroadcast:
        return check_same(open, open.bytes, open.root);
      case Kind::kAllToAll:
        return check_parts(open);
    }
    return {};
  }

  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  enum class Kind { kGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
  struct Open {
    Kind kind = Kind::kGather;
    std::span<std::byte> bytes;  // of an all-gather or a broadcast
    std::span<float> floats;     // or the result of a sum
    std::span<double> doubles;
    int root = 0;
    Pending beside;  // the operation that carries what follows
    uint32_t own = 0;
    std::vector<uint32_t> checksums;
    std::vector<uint32_t> own_parts;  // of an all-to-all: of what each rank is sent
    std::vector<int64_t> part_bytes;  // and what comes from each
    std::vector<Totals> totals;       // of each part, of this rank and then of all
  };

  template <typename Number>
  Result<Pending> all_reduce_into(std::span<Number> Open::*result, std::span<Number> buffer) {
    Open open;
    open.kind = Kind::kAllReduce;
    open.*result = buffer;
    open.totals = {totals_of(std::span<const Number>(buffer))};
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

  static std::span<const std::byte> result_bytes(const Open& open) {
    return open.floats.empty() ? std::as_bytes(open.doubles) : std::as_bytes(open.floats);
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
    const bool is_float = open.doubles.empty();
    const Totals result = is_float ? totals_of(std::span<const float>(open.floats))
                                   : totals_of(std::span<const double>(open.doubles));
    const Totals& expected = open.totals[part];
    // What is no number any more, or too large for one, is found by the trainer, which names where it came from.
    if (!std::isfinite(expected.size) || !std::isfinite(result.size)) return {};
    const double unit =
        is_float ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
    const auto count =
        static_cast<double>(result_bytes(open).size() / (is_float ? sizeof(float) : sizeof(double)));
    // The totals themselves are added up in fp64.
    const double allowed =
        expected.size * (size() * unit + (count + size()) * std::numeric_limits<double>::epsilon()) +
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
    std::vector<uint32_t> all(static_cast<size_t>(size()));
    ASSIGN_OR_RETURN(const auto pending, inner_.all_gather(std::as_bytes(std::span(&own, 1)),
                                                           std::as_writable_bytes(std::span(all))));
    RETURN_IF_ERROR(inner_.wait(pending));
    for (int other = 0; other < size(); ++other) {
      if (all[other] == all[root]) continue;
      return Error(
          Code::kCorrupt,
          fmt::format("{} of group {}: its rank {} has other bytes than its rank {}",
                      open.kind == Kind::kBroadcast ? "a broadcast" : "an all-reduce", name_, other, root));
    }
    return {};
  }

  Communicator& inner_;
  std::string name_;
  std::map<uint64_t, Open> open_;  // operations in flight, by ticket
};

}  // namespace

std::unique_ptr<Communicator> checked(Communicator& inner, std::string name) {
  return std::make_unique<CheckedCommunicator>(inner, std::move(name));
}

}  // namespace shardrun::comm
