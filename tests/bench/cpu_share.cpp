// cpu_share: what this machine's CPUs give when all compute at once, in millions of multiplications a second of the slowest one.
//
// A virtual CPU may share its core with one of another virtual machine, which halves what it computes in a second and shows in no
// count of stolen time. The chains below keep a core's multiplier busy, so that they show it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRounds = 20'000'000, kChains = 6;  // of some hundredths of a second

double millions_a_second() {
  uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    a *= 0x9e3779b97f4a7c15, b *= 0x9e3779b97f4a7c15, c *= 0x9e3779b97f4a7c15;
    d *= 0x9e3779b97f4a7c15, e *= 0x9e3779b97f4a7c15, f *= 0x9e3779b97f4a7c15;
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return kRounds / 1e6 * kChains / took.count();
}

}  // namespace

int main() {
  std::vector<double> shares(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (double& share : shares) threads.emplace_back([&share] { share = millions_a_second(); });
  for (std::thread& thread : threads) thread.join();
  std::printf("%.0f\n", *std::min_element(shares.begin(), shares.end()));
  return 0;
}
