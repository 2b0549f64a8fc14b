// The ops under test, and the values that they get.
#pragma once

#include <vector>

#include "runtime/trainer/kernels/backend.h"

namespace shardrun::tests {

using Values = std::vector<float>;

// Returns the CPU's ops.
template <typename T>
const kernels::Ops<T>& ops() {
  return kernels::cpu_backend().ops<T>();
}

}  // namespace shardrun::tests
