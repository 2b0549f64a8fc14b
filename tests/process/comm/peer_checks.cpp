#include "tests/process/comm/peer_checks.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <vector>

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

std::string check_reduce_scatter(Communicator& communicator, uint64_t round, uint64_t count) {
  const auto full = numbers<float>(round, communicator.rank(), count * communicator.size());
  const auto before = full;
  std::vector<float> mine(count, -1.0f);
  const std::string error =
      finish(communicator, communicator.reduce_scatter(full, mine), "reduce-scatter", count);
  if (!error.empty()) return error;
  if (!same_bits(before, full.data())) return "reduce-scatter changed its input";
  const auto sum = expected_sum<float>(round, communicator.size(), count * communicator.size());
  return same_bits(mine, sum.data() + count * communicator.rank())
             ? ""
             : fmt::format("reduce-scatter of {}: wrong bits", count);
}

template <typename T>
std::string check_all_reduce(Communicator& communicator, uint64_t round, uint64_t count) {
  auto buffer = numbers<T>(round, communicator.rank(), count);
  const std::string error =
      finish(communicator, communicator.all_reduce(std::span(buffer)), "all-reduce", count);
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
          check_reduce_scatter(communicator, ++round, count),
          check_all_reduce<float>(communicator, ++round, count),
          check_all_reduce<double>(communicator, ++round, count),
          check_broadcast(communicator, ++round, count, root),
          finish(communicator, communicator.barrier(), "barrier", 0)}) {
      if (!error.empty()) return error;
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
