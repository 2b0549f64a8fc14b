#include "tests/process/comm/peer_checks.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/bf16_number.h"
#include "tests/support/tree_sum.h"

namespace shardrun::tests {
namespace {

using comm::Communicator;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns element `i` of `rank`'s data in test `round`: signs and magnitudes from 2^-20 to 2^20, so that order shows.
template <typename T>
T number(uint64_t round, int rank, uint64_t i) {
  const uint64_t bits = mix(mix(round * 1000 + static_cast<uint64_t>(rank)) + i);
  const T mantissa = static_cast<T>(static_cast<int64_t>(bits >> 40)) / 65536 - 128;
  return std::ldexp(mantissa, static_cast<int>(bits % 41) - 20);
}

template <>
Bf16Number number<Bf16Number>(uint64_t round, int rank, uint64_t i) {
  return Bf16Number::nearest(number<float>(round, rank, i));
}

// A buffer as a communicator takes it.
template <typename T>
std::span<T> buffer_of(std::vector<T>& values) {
  return values;
}
std::span<comm::Bf16> buffer_of(std::vector<Bf16Number>& values) {
  return {reinterpret_cast<comm::Bf16*>(values.data()), values.size()};
}

template <typename T>
std::vector<T> numbers(uint64_t round, int rank, uint64_t count) {
  std::vector<T> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = number<T>(round, rank, i);
  return values;
}

template <typename T>
std::vector<T> expected_sum(uint64_t round, int ranks, uint64_t count) {
  std::vector<std::vector<T>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(numbers<T>(round, rank, count));
  std::vector<T> sum(count);
  for (uint64_t i = 0; i < count; ++i) sum[i] = tree_sum(ranks, [&](int rank) { return parts[rank][i]; });
  return sum;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const T* b) {
  return a.empty() || std::memcmp(a.data(), b, a.size() * sizeof(T)) == 0;
}

std::string finish(Communicator& communicator, const base::Result<comm::Pending>& pending, const char* what,
                   uint64_t count) {
  if (!pending) return fmt::format("{} of {}: {}", what, count, pending.error().to_string());
  const auto done = communicator.wait(*pending);
  return done ? "" : fmt::format("{} of {}: {}", what, count, done.error().to_string());
}

std::string check_all_gather(Communicator& communicator, uint64_t round, uint64_t bytes, bool in_place) {
  const auto part_of = [&](int rank) {
    std::vector<std::byte> part(bytes);
    for (uint64_t i = 0; i < bytes; ++i) part[i] = static_cast<std::byte>(mix(round + rank * 77777 + i));
    return part;
  };
  std::vector<std::byte> mine = part_of(communicator.rank()), all(bytes * communicator.size());
  std::span<const std::byte> from = mine;
  if (in_place) {
    const auto slot = std::span(all).subspan(bytes * communicator.rank(), bytes);
    std::copy(mine.begin(), mine.end(), slot.begin());
    from = slot;
  }
  const std::string error = finish(communicator, communicator.all_gather(from, all), "all-gather", bytes);
  if (!error.empty()) return error;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (!same_bits(part_of(rank), all.data() + bytes * rank)) {
      return fmt::format("all-gather of {}: wrong bytes from rank {}", bytes, rank);
    }
  }
  return {};
}

template <typename T>
std::string check_reduce_scatter(Communicator& communicator, uint64_t round, uint64_t count) {
  auto full = numbers<T>(round, communicator.rank(), count * communicator.size());
  const auto before = full;
  std::vector<T> mine(count, T{1});
  const std::string error = finish(
      communicator, communicator.reduce_scatter(buffer_of(full), buffer_of(mine)), "reduce-scatter", count);
  if (!error.empty()) return error;
  if (!same_bits(before, full.data())) return "reduce-scatter changed its input";
  const auto sum = expected_sum<T>(round, communicator.size(), count * communicator.size());
  return same_bits(mine, sum.data() + count * communicator.rank())
             ? ""
             : fmt::format("reduce-scatter of {} x {} bytes: wrong bits", count, sizeof(T));
}

template <typename T>
std::string check_all_reduce(Communicator& communicator, uint64_t round, uint64_t count) {
  auto buffer = numbers<T>(round, communicator.rank(), count);
  const std::string error =
      finish(communicator, communicator.all_reduce(buffer_of(buffer)), "all-reduce", count);
  if (!error.empty()) return error;
  return same_bits(expected_sum<T>(round, communicator.size(), count), buffer.data())
             ? ""
             : fmt::format("all-reduce of {} x {} bytes: wrong bits", count, sizeof(T));
}

std::string check_broadcast(Communicator& communicator, uint64_t round, uint64_t count, int root) {
  auto buffer = numbers<float>(round, communicator.rank(), count);
  const std::string error =
      finish(communicator, communicator.broadcast(std::as_writable_bytes(std::span(buffer)), root),
             "broadcast", count);
  if (!error.empty()) return error;
  return same_bits(numbers<float>(round, root, count), buffer.data())
             ? ""
             : fmt::format("broadcast of {} from {}: wrong bits", count, root);
}

}  // namespace

std::string check_collectives(Communicator& communicator) {
  uint64_t round = 0;
  for (const uint64_t count :
       {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1021}, uint64_t{65537}, uint64_t{(1 << 18) + 3}}) {
    const int root = static_cast<int>(round % static_cast<uint64_t>(communicator.size()));
    for (const std::string& error :
         {check_all_gather(communicator, ++round, count, /*in_place=*/false),
          check_all_gather(communicator, ++round, 4 * count + 3, /*in_place=*/true),
          check_reduce_scatter<float>(communicator, ++round, count),
          check_reduce_scatter<Bf16Number>(communicator, ++round, count),
          check_all_reduce<float>(communicator, ++round, count),
          check_all_reduce<double>(communicator, ++round, count),
          check_all_reduce<Bf16Number>(communicator, ++round, count),
          check_broadcast(communicator, ++round, count, root),
          finish(communicator, communicator.barrier(), "barrier", 0)}) {
      if (!error.empty()) return error;
    }
  }
  return {};
}

std::string check_all_to_all(Communicator& communicator) {
  const int size = communicator.size(), me = communicator.rank();
  // Of every size up to 2 MiB; every third part is empty, a rank sends to itself, too, and at first rank 0 has no part in it.
  const auto bytes_of = [](uint64_t round, int from, int to) {
    if (round == 1 && (from == 0 || to == 0)) return int64_t{0};
    const uint64_t draw = mix(round * 10007 + static_cast<uint64_t>(from * 101 + to));
    return draw % 3 == 0 ? int64_t{0} : static_cast<int64_t>(draw >> 20 & ((uint64_t{1} << (draw % 22)) - 1));
  };
  const auto part_of = [&](uint64_t round, int from, int to) {
    std::vector<std::byte> part(bytes_of(round, from, to));
    for (size_t i = 0; i < part.size(); ++i)
      part[i] = static_cast<std::byte>(mix(round + static_cast<uint64_t>(from * 7919 + to * 104729) + i));
    return part;
  };
  struct Exchange {
    std::vector<int64_t> sends, receives;
    std::vector<std::byte> sent, received;
  };
  for (uint64_t round = 1; round < 40; round += 2) {
    std::vector<Exchange> exchanges(2);
    std::vector<comm::Pending> pending;
    for (uint64_t i = 0; i < 2; ++i) {
      Exchange& one = exchanges[i];
      for (int other = 0; other < size; ++other) {
        const auto part = part_of(round + i, me, other);
        one.sends.push_back(static_cast<int64_t>(part.size()));
        one.sent.insert(one.sent.end(), part.begin(), part.end());
        one.receives.push_back(bytes_of(round + i, other, me));
        one.received.resize(one.received.size() + static_cast<size_t>(one.receives.back()));
      }
      const auto started = communicator.all_to_all({one.sent, one.sends, one.received, one.receives});
      if (!started) return started.error().to_string();
      pending.push_back(*started);
    }
    for (uint64_t i = 0; i < 2; ++i) {
      const std::string error = finish(communicator, pending[i], "all-to-all", round + i);
      if (!error.empty()) return error;
      size_t at = 0;
      for (int other = 0; other < size; ++other) {
        const auto part = part_of(round + i, other, me);
        if (!same_bits(part, exchanges[i].received.data() + at))
          return fmt::format("all-to-all {}: wrong bytes from rank {}", round + i, other);
        at += part.size();
      }
    }
  }
  return {};
}

std::string check_overlap(Communicator& gathers, Communicator& sums) {
  constexpr uint64_t kCount = 50021;
  constexpr int kDepth = 3;
  for (uint64_t round = 100; round < 110; ++round) {
    std::vector<std::vector<float>> mine, all, totals;
    std::vector<comm::Pending> gathering, summing;
    for (int i = 0; i < kDepth; ++i) {
      mine.push_back(numbers<float>(round + i, gathers.rank(), kCount));
      totals.push_back(mine.back());
      all.emplace_back(kCount * gathers.size());
    }
    for (int i = 0; i < kDepth; ++i) {
      auto gather =
          gathers.all_gather(std::as_bytes(std::span(mine[i])), std::as_writable_bytes(std::span(all[i])));
      auto sum = sums.all_reduce(std::span(totals[i]));
      if (!gather) return gather.error().to_string();
      if (!sum) return sum.error().to_string();
      gathering.push_back(*gather);
      summing.push_back(*sum);
    }
    for (int i = kDepth - 1; i >= 0; --i) {  // waits may come in any order
      const auto summed = sums.wait(summing[i]);
      if (!summed) return summed.error().to_string();
      const auto gathered = gathers.wait(gathering[i]);
      if (!gathered) return gathered.error().to_string();
      if (!same_bits(expected_sum<float>(round + i, sums.size(), kCount), totals[i].data()))
        return "overlap: wrong sum";
      for (int rank = 0; rank < gathers.size(); ++rank) {
        if (!same_bits(numbers<float>(round + i, rank, kCount), all[i].data() + kCount * rank)) {
          return fmt::format("overlap: wrong bytes from rank {}", rank);
        }
      }
    }
  }
  return {};
}

}  // namespace shardrun::tests
