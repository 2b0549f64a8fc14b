// PackedAdamW: AdamW on a rank's flat shard with its moments in 8 bits (kernels/packed_moments.h).
//
// Whoever saves and loads sees moments in fp32: read() and write() convert, and what was packed is packed to the same bits again.
// Thread rule: thread-compatible; read() may be called by several threads while nobody writes or updates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/packed_moments.h"
#include "runtime/trainer/optim/adamw.h"

namespace shardrun::optim {

class PackedAdamW {
 public:
  // `ranges` as AdamW's, ascending. Takes plan::moments() of packed ones, which are zero. kIo without that much memory.
  static base::Result<PackedAdamW> create(const std::vector<UpdateRange>& ranges, const AdamWOptions& options,
                                          int64_t elements);

  // Makes optimizer step number `step`, counted from 1. `gradient` is multiplied by `gradient_scale` first.
  void update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
              double learning_rate, int64_t step) const;

  // Copies elements of moment 0 or 1 from `first` on.
  void read(int moment, int64_t first, std::span<float> values) const;
  // Sets all elements of it.
  void write(int moment, std::span<const float> values) const;

 private:
  PackedAdamW(base::Memory memory, const AdamWOptions& options, int64_t elements);

  base::Memory memory_;
  AdamWOptions options_;
  int64_t elements_;
  kernels::PackedMoment moments_[2];
  std::vector<kernels::DecayRange> ranges_;
};

}  // namespace shardrun::optim
