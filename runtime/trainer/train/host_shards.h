// HostShards: shards of a backend as the host fills them, with initial weights or from a checkpoint.
//
// For the CPU they are the shards themselves, for a GPU copies in the host's memory, for as long as this lives.
// Thread rule: thread-compatible.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::train {

using base::Result;

class HostShards {
 public:
  // The backend and the shards outlive it, and so does `spare`: memory of the host, as long as all shards together and
  // zero where they have padding, to be used for the copies; empty: it takes memory. kIo without that much memory.
  static Result<HostShards> of(kernels::Backend& backend, std::vector<std::span<float>> shards,
                               std::span<float> spare = {});

  std::span<float> operator[](size_t index) const { return host_[index]; }
  // What the host wrote is in the shards afterwards.
  Result<void> store();

 private:
  HostShards(kernels::Backend& backend, std::vector<std::span<float>> shards)
      : backend_(&backend), shards_(std::move(shards)), host_(shards_) {}

  bool copies() const { return backend_->kind() == kernels::DeviceKind::kGpu; }

  kernels::Backend* backend_;
  base::Memory memory_;
  std::vector<std::span<float>> shards_, host_;
};

}  // namespace shardrun::train
