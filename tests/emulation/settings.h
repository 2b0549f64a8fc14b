// Decides what the emulated GPU does where a real one may do either: one number chooses it all.
//
// EMULATED_GPU, read once: "seed=1,products=none,memory=open,memory_mib=512", each part optional.
//   seed=0    work of other streams as late as allowed, copies into shared memory when they are waited for, blocks and
//             warps forwards
//   seed=1    work of other streams as early as allowed, copies at once, blocks and warps backwards
//   seed=N    by chance, the same for the same N
//   products=none   cublasLt has no kernel for any product, so that plain loops take them
//   memory=open     the host may touch the GPU's memory; quicker
// Thread rule: tests change it while nothing is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace shardrun::emulation {

struct Settings {
  uint64_t seed = 0;
  bool has_products = true, closes_memory = true;
  size_t memory_bytes = size_t{4} << 30;
  int refused_products = 0;  // this many products from now on are refused when they are asked for; -1: all
};

Settings& settings();

// Takes one of the two extremes, or chooses by chance.
enum class Choice { kFirst, kLast, kRandom };
Choice choice();
// The generator for Choice::kRandom; it begins anew when set_seed changes the seed.
std::mt19937_64& chance();
void set_seed(uint64_t seed);

}  // namespace shardrun::emulation
