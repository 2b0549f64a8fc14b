// How rows of a matrix become blocks of threads. Plain arithmetic, which the ops and the specialised kernels share.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace shardrun::kernels::cuda {

constexpr int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t quotient_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit;
}

// Threads of a block that takes a row of `packs` vectors.
constexpr unsigned row_threads(int64_t packs, int64_t most = 256) {
  const int64_t wanted = rounded_up(packs, 32);
  return static_cast<unsigned>(wanted < 32 ? 32 : wanted > most ? most : wanted);
}

}  // namespace shardrun::kernels::cuda
