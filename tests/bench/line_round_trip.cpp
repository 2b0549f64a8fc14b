// line_round_trip: nanoseconds that a cache line takes from CPU 0 to CPU 1 and back.
//
// A virtual machine's CPUs may be moved between cores that share a cache and cores that do not; what ranks pass through memory then
// takes several times as long. tests/cluster/collectives_beside_peers prints the figure beside its rows. 77: there is one CPU.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include <sched.h>

namespace {

constexpr int kRounds = 2000, kSeries = 5;

struct alignas(64) Line {
  std::atomic<int> value{0};
};

bool bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace

int main() {
  static Line there, back;
  if (!bind_to(1) || !bind_to(0)) return 77;
  std::thread other([] {
    bind_to(1);
    for (int i = 1; i <= kSeries * kRounds; ++i) {
      while (there.value.load(std::memory_order_acquire) < i) continue;
      back.value.store(i, std::memory_order_release);
    }
  });
  std::array<double, kSeries> seconds{};
  for (int series = 0, i = 1; series < kSeries; ++series) {
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < kRounds; ++round, ++i) {
      there.value.store(i, std::memory_order_release);
      while (back.value.load(std::memory_order_acquire) < i) continue;
    }
    seconds[static_cast<size_t>(series)] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  other.join();
  std::sort(seconds.begin(), seconds.end());
  std::printf("%.0f\n", 1e9 * seconds[kSeries / 2] / kRounds);
  return 0;
}
