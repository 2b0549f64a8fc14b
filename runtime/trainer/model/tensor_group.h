// TensorGroup: the ranks that share each matrix of a model, as the model needs them. Sums are fp32.
//
// Between two matrices that are cut, the rows (tokens) of the residual stream are cut instead: each rank owns
// rows / size of them, in rank order (sequence parallelism, Korthikanti et al. 2022). A group of one does nothing.
//
// Errors: the communicator's. Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/trainer/comm/communicator.h"

namespace shardrun::model {

using base::Result;

class TensorGroup {
 public:
  // Null: a group of one. The communicator outlives the group.
  explicit TensorGroup(comm::Communicator* communicator = nullptr) : communicator_(communicator) {}

  bool alone() const { return size() == 1; }
  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }

  // all: size() equal parts in rank order. This rank's part is already in its place.
  template <typename T>
  Result<void> gather_in_place(T* all, int64_t elements_each) const {
    const auto bytes = std::as_writable_bytes(std::span(all, elements_each * size()));
    const auto each = static_cast<size_t>(elements_each) * sizeof(T);
    return gather_bytes(bytes.subspan(static_cast<size_t>(rank()) * each, each), bytes);
  }
  // Sum over ranks of `full`; this rank keeps its part, full.size() / size() elements.
  Result<void> scatter_sum(std::span<const float> full, std::span<float> part) const;
  Result<void> sum(std::span<float> values) const;

 private:
  Result<void> gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) const;

  comm::Communicator* communicator_;
};

}  // namespace shardrun::model
