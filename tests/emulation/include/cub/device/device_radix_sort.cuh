// The one sort of runtime/trainer/kernels/cuda, for the emulated GPU: stable, by bits [begin, end) of the keys.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  // A null `space` asks how many bytes of it there must be. As for CUB's one-sweep sort, it holds keys and values once
  // more, and a table of 256 digits for each tile. It is filled with rubbish.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* space, size_t& space_bytes, const Key* keys, Key* keys_out,
                               const Value* values, Value* values_out, int count, int begin_bit, int end_bit,
                               cudaStream_t stream) {
    constexpr size_t kTile = 2048, kTable = 256 * sizeof(uint32_t);
    const size_t needed = static_cast<size_t>(count) * (sizeof(Key) + sizeof(Value)) +
                          (static_cast<size_t>(count) / kTile + 16) * kTable;
    if (space == nullptr) {
      space_bytes = needed;
      return cudaSuccess;
    }
    if (space_bytes < needed) return cudaErrorInvalidValue;
    return shardrun::emulation::put_on(stream, [=] {
      const auto part_of = [=](Key key) {
        return (uint64_t{key} & ((uint64_t{1} << end_bit) - 1)) >> begin_bit;
      };
      std::vector<int> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return part_of(keys[a]) < part_of(keys[b]); });
      for (int i = 0; i < count; ++i) {
        keys_out[i] = keys[order[static_cast<size_t>(i)]];
        values_out[i] = values[order[static_cast<size_t>(i)]];
      }
      std::memset(space, 0xff, needed);
    });
  }
};

}  // namespace cub
