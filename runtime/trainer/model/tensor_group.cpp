#include "runtime/trainer/model/tensor_group.h"

namespace shardrun::model {
namespace {

Result<void> finish(comm::Communicator& communicator, Result<comm::Pending> pending) {
  if (auto done = comm::complete(communicator, std::move(pending)); !done)
    return std::move(done).error().context("tensor group");
  return {};
}

}  // namespace

Result<void> TensorGroup::gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) const {
  return alone() ? Result<void>() : finish(*communicator_, communicator_->all_gather(mine, all));
}

Result<void> TensorGroup::scatter_sum(std::span<const float> full, std::span<float> part) const {
  return alone() ? Result<void>() : finish(*communicator_, communicator_->reduce_scatter(full, part));
}

Result<void> TensorGroup::sum(std::span<float> values) const {
  return alone() ? Result<void>() : finish(*communicator_, communicator_->all_reduce(values));
}

}  // namespace shardrun::model
