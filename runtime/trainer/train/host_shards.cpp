#include "runtime/trainer/train/host_shards.h"

namespace shardrun::train {

Result<HostShards> HostShards::of(kernels::Backend& backend, std::vector<std::span<float>> shards,
                                  std::span<float> spare) {
  HostShards result(backend, std::move(shards));
  if (!result.copies()) return result;
  int64_t bytes = 0;
  for (const std::span<float> shard : result.shards_) bytes += static_cast<int64_t>(shard.size_bytes());
  float* at = spare.data();
  if (spare.empty()) {
    auto memory = base::Memory::create(bytes);
    if (!memory) return std::move(memory).error().context("a copy of the shards for the GPU");
    result.memory_ = std::move(memory).value();
    at = reinterpret_cast<float*>(result.memory_.data());
  } else {
    SHARDRUN_CHECK(static_cast<int64_t>(spare.size_bytes()) == bytes);
  }
  for (std::span<float>& shard : result.host_) {
    shard = {at, shard.size()};
    at += shard.size();
  }
  return result;
}

Result<void> HostShards::store() {
  if (!copies()) return {};
  for (size_t i = 0; i < shards_.size(); ++i) {
    backend_->upload(shards_[i].data(), host_[i].data(), static_cast<int64_t>(host_[i].size_bytes()));
  }
  return backend_->finish();
}

}  // namespace shardrun::train
