// collectives_bench: seconds of collectives among the ranks of a job, compared with the least that its links allow.
//
//   shardrun run job.toml        with [program] command = ["collectives_bench", PLUGIN, LINK_BITS_PER_SECOND, BYTES…]
//
// BYTES are a rank's part: of an all-gather, of a reduce-scatter, and of an all-reduce of as many bytes as the two have in
// all. The floor is what the busiest direction of a node's link carries over LINK_BITS_PER_SECOND when every byte enters a
// node once (docs/decisions/0071). After the first two come an all-gather and a reduce-scatter that are under way at once,
// as in the backward half of a sharded step, but for parts of more than 4 MiB. Values are random; an all-gather of each size is
// compared with what all ranks have before anything is timed. The peers are tests/bench/mpi_collectives.c and
// gloo_collectives.py.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/trainer/comm/world.h"

namespace {

using shardrun::base::Error;
using shardrun::base::Result;
using shardrun::comm::Communicator;
using shardrun::comm::Pending;

constexpr size_t kLong = 4 << 20;  // bytes

std::mt19937 values_of(int rank) {
  return std::mt19937(static_cast<unsigned>(rank));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void stop(const Error& error) {
  fmt::print(stderr, "{}\n", error.to_string());
  std::exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result) stop(result.error());
  return std::move(*result);
}

void finish(Communicator& world, Result<Pending> pending) {
  const auto waited = world.wait(must(std::move(pending)));
  if (!waited) stop(waited.error());
}

// Prints the median of 7 rounds of an operation, of 3 where they are long, unless told otherwise. A round ends when all ranks are
// done. One round before them is not counted: TCP's windows open in it.
template <typename Run>
void measure(Communicator& all, const char* name, size_t bytes, double floor, Run run) {
  const char* const only = std::getenv("COLLECTIVES_ONLY");
  if (only != nullptr && std::string(only) != name) return;
  const char* const told = std::getenv("COLLECTIVES_ROUNDS");
  const int rounds = told != nullptr ? std::max(1, std::atoi(told)) : bytes > kLong ? 3 : 7;
  const int in_row = bytes <= 65536 ? 10 : 1;
  std::vector<double> seconds;
  for (int once = 0; once < in_row; ++once) run();
  for (int round = 0; round < rounds; ++round) {
    finish(all, all.barrier());
    const double begin = now();
    for (int once = 0; once < in_row; ++once) run();
    finish(all, all.barrier());
    seconds.push_back((now() - begin) / in_row);
  }
  std::sort(seconds.begin(), seconds.end());
  if (all.rank() != 0) return;
  fmt::print("{:14} {:8} bytes a rank: {:10.3f} ms", name, bytes,
             1e3 * seconds[static_cast<size_t>(rounds) / 2]);
  if (floor > 0) {
    fmt::print(", floor {:8.2f} ms, {:.2f} ({:.2f} to {:.2f})", 1e3 * floor,
               seconds[static_cast<size_t>(rounds) / 2] / floor, seconds.front() / floor,
               seconds.back() / floor);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  shardrun::comm::WorldOptions options;
  options.plugin_path = argv[1];
  options.groups = {{}, {}};  // two of all ranks, whose operations are under way at once
  auto world = must(shardrun::comm::connect_world(options));
  Communicator& all = *world.communicators[0];
  Communicator& beside = *world.communicators[1];
  const double link = std::atof(argv[2]) / 8.0;
  const char* count = std::getenv("SHARDRUN_NODE_COUNT");
  const int nodes = count == nullptr ? 1 : std::max(1, std::atoi(count));
  const int size = all.size(), near = size / nodes;
  for (int i = 3; i < argc; ++i) {
    const auto bytes = static_cast<size_t>(std::atoll(argv[i]));
    std::vector<float> mine(bytes / sizeof(float)), full(mine.size() * static_cast<size_t>(size));
    std::mt19937 own = values_of(all.rank());
    for (float& value : mine) value = static_cast<float>(own());
    const auto gather = [&] {
      return all.all_gather(std::as_bytes(std::span<const float>(mine)),
                            std::as_writable_bytes(std::span<float>(full)));
    };
    finish(all, gather());
    auto gathered = full.begin();
    for (int rank = 0; rank < size; ++rank) {
      std::mt19937 theirs = values_of(rank);
      for (size_t k = 0; k < mine.size(); ++k) {
        if (*gathered++ == static_cast<float>(theirs())) continue;
        fmt::print(stderr, "rank {} gathered something else than rank {} has\n", all.rank(), rank);
        return 1;
      }
    }
    // What is gathered while it is added up is a copy. Of long ones 16 ranks have no room for two.
    const bool both = bytes <= kLong;
    std::vector<float> sum(mine.size()), copy;
    if (both) copy = full;
    const auto scatter = [&] { return beside.reduce_scatter(both ? copy : full, sum); };
    const double once = static_cast<double>(bytes) * (size - near) / link;
    measure(all, "all_gather", bytes, once, [&] { finish(all, gather()); });
    measure(all, "reduce_scatter", bytes, once, [&] { finish(beside, scatter()); });
    if (both) {
      measure(all, "both_at_once", bytes, 2 * once, [&] {
        auto first = gather(), second = scatter();
        finish(all, std::move(first));
        finish(beside, std::move(second));
      });
    }
    std::fill(full.begin(), full.end(), 0.0f);  // what is added up again and again stays a number
    measure(all, "all_reduce", bytes, 2 * once, [&] { finish(all, all.all_reduce(std::span<float>(full))); });
  }
  finish(all, all.barrier());
  return 0;
}
