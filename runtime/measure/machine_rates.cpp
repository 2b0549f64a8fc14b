#include "runtime/measure/machine_rates.h"

#include <cstring>

#include "runtime/base/memory.h"
#include "runtime/measure/clocks.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/optim/adamw.h"

namespace shardrun::measure {
namespace {

using record::GemmRate;
using record::Spread;

constexpr int kRounds = 5;
constexpr int64_t kCopied = 8 << 20;      // floats: more than the caches that a core has to itself
constexpr int64_t kParameters = 4 << 20;  // parameters of an update: likewise

// Returns the seconds of `work` for each round, on every rank.
template <typename Work>
base::Result<std::vector<double>> time_rounds(comm::Communicator& world, int cpus, const Work& work) {
  work();
  RETURN_IF_ERROR(comm::complete(world, world.barrier()));
  std::vector<double> mine;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = cpu_seconds();
    work();
    mine.push_back((cpu_seconds() - begin) / cpus);
  }
  return comm::gather_values(world, mine);
}

template <typename Work>
base::Result<Spread> rate(comm::Communicator& world, int cpus, double amount, const Work& work) {
  ASSIGN_OR_RETURN(auto seconds, time_rounds(world, cpus, work));
  for (double& one : seconds) one = amount / one;
  return Spread::of(std::move(seconds));
}

template <typename T>
base::Result<GemmRate> time_product(comm::Communicator& world, int cpus, const char* type, int64_t size) {
  const auto count = static_cast<size_t>(size * size);
  const std::vector<T> left(count, T{}), right(count, T{});
  std::vector<T> product(count);
  auto spread = rate(world, cpus, 2.0 * static_cast<double>(size * size * size), [&] {
    kernels::cpu_backend().ops<T>().products.linear_forward(product.data(), left.data(), right.data(), size,
                                                            size, size);
  });
  RETURN_IF_ERROR(spread);
  return GemmRate{type, size, *spread};
}

}  // namespace

base::Result<std::vector<GemmRate>> time_products(comm::Communicator& world, int cpus) {
  std::vector<GemmRate> rates;
  for (const int64_t size : {256, 512, 1024}) {
    ASSIGN_OR_RETURN(auto bf16, time_product<kernels::Bf16>(world, cpus, "bf16", size));
    ASSIGN_OR_RETURN(auto fp32, time_product<float>(world, cpus, "fp32", size));
    rates.push_back(bf16);
    rates.push_back(fp32);
  }
  return rates;
}

base::Result<Spread> time_memory(comm::Communicator& world, int cpus) {
  const std::vector<float> from(kCopied, 1.0F);
  std::vector<float> to(kCopied);
  return rate(world, cpus, 2.0 * sizeof(float) * kCopied, [&] { base::copy_past_caches(from, to.data()); });
}

base::Result<Spread> time_update(comm::Communicator& world, int cpus) {
  std::vector<float> master(kParameters, 0.1F), gradient(kParameters, 1e-3F), first(kParameters),
      second(kParameters);
  std::vector<uint16_t> half(kParameters);
  optim::AdamW adamw({{.begin = 0, .count = kParameters}}, {}, first, second);
  int64_t step = 0;
  volatile double kept = 0.0;
  auto seconds = time_rounds(world, cpus, [&] {
    kept = optim::sum_of_squares(gradient);
    adamw.update(master, gradient, 1.0, 1e-3, ++step);
    kernels::fp32_to_bf16(master, half);
  });
  RETURN_IF_ERROR(seconds);
  for (double& one : *seconds) one /= static_cast<double>(kParameters);
  return Spread::of(std::move(*seconds));
}

}  // namespace shardrun::measure
