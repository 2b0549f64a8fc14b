// SharedAttention: attention of the tokens that this rank has of each sequence, where the ranks of a context group share
// sequences, and of all tokens where it is alone.
//
// Each rank computes the queries of its own tokens (plan/context.h says which) against the keys and values of all, which it
// gathers for one layer at a time, in forward and again in backward. What its queries give to the others' keys and values is
// summed in fp32, in the ranks' order, and each keeps its own. So a run has the same bits every time.
//
// Source: context parallelism by all-gather, as Llama 3's report has it (Dubey et al. 2024, section 3.3.2).
// Internal to runtime/trainer/model. Errors: the communicator's. Thread rule: thread-compatible.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/plan/model/llama_buffers.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/tensor_group.h"

namespace shardrun::model {

template <typename T>
class SharedAttention {
 public:
  // The backend, the ops and the memory of `buffers` outlive this.
  SharedAttention(kernels::Backend& backend, const kernels::Ops<T>& ops, comm::Communicator* context,
                  const plan::LlamaSizes& sizes, const plan::SharedKeys<T>& buffers)
      : backend_(backend), ops_(ops), group_(context), sizes_(sizes), buffers_(buffers) {
    SHARDRUN_CHECK(group_.size() == sizes_.sharers);
    shape_ = {sizes_.B, sizes_.T, sizes_.H, sizes_.K, sizes_.D, {group_.rank(), group_.size()}};
  }

  bool alone() const { return group_.alone(); }

  // Returns the rows of a table of all positions (T,D) at which this rank's tokens stand, (W,D).
  std::vector<float> own_rows(std::vector<float> table) const {
    if (alone()) return table;
    for (int64_t own = 0; own < sizes_.W; ++own) {
      const auto row = table.begin() + shape_.context.position(own, sizes_.T) * sizes_.D;
      std::copy(row, row + sizes_.D, table.begin() + own * sizes_.D);  // which is never behind it
    }
    table.resize(sizes_.W * sizes_.D);
    return table;
  }

  // AttentionOps::forward of this rank's tokens; visibility is of all.
  Result<void> forward(T* out, float* lse, const T* qkv, const kernels::Visibility& visibility) {
    if (alone()) {
      ops_.attention.forward(out, lse, qkv, shape_, visibility);
      return {};
    }
    RETURN_IF_ERROR(gather(qkv));
    ops_.attention.shared_forward(out, lse, qkv, buffers_.kv, shape_, visibility);
    return {};
  }

  // AttentionOps::backward of this rank's tokens.
  Result<void> backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                        const kernels::Visibility& visibility) {
    if (alone()) {
      ops_.attention.backward(dqkv, dout, out, qkv, lse, shape_, visibility);
      return {};
    }
    RETURN_IF_ERROR(gather(qkv));
    backend_.zero(dqkv, sizes_.N * sizes_.QKV * int64_t{sizeof(T)});
    ops_.attention.shared_backward(dqkv, buffers_.dkv, dout, out, qkv, buffers_.kv, lse, shape_, visibility);
    for_each_piece([&](int64_t in_sequence, int64_t by_rank, int64_t elements) {
      backend_.copy(buffers_.leaving + by_rank, buffers_.dkv + in_sequence,
                    elements * int64_t{sizeof(float)});
    });
    const int64_t own = sizes_.N * width();
    RETURN_IF_ERROR(
        group_.scatter_sum(std::span(buffers_.leaving, own * group_.size()), std::span(buffers_.dsum, own)));
    T* const sum = buffers_.arriving;  // where the summands were
    ops_.pointwise.from_fp32(sum, buffers_.dsum, own);
    ops_.pointwise.add_to_columns(dqkv + sizes_.HD, sum, 1.0F, sizes_.N, width(), sizes_.QKV);
    return {};
  }

 private:
  int64_t width() const { return 2 * sizes_.K * sizes_.D; }

  // Calls visit(where in the sequences, where by ranks, elements) for each piece of each rank's tokens of each sequence.
  template <typename Visit>
  void for_each_piece(const Visit& visit) const {
    const plan::ContextPlace& place = shape_.context;
    const int64_t piece = place.piece_tokens(sizes_.T);
    for (int rank = 0; rank < place.ranks; ++rank) {
      for (int64_t b = 0; b < sizes_.B; ++b) {
        const int64_t at = (rank * sizes_.B + b) * sizes_.W;
        visit((b * sizes_.T + place.first_piece(rank) * piece) * width(), at * width(), piece * width());
        visit((b * sizes_.T + place.second_piece(rank) * piece) * width(), (at + piece) * width(),
              piece * width());
      }
    }
  }

  // Leaves the keys and values of all tokens in `kv`, in the sequences' order.
  Result<void> gather(const T* qkv) {
    const int64_t own = sizes_.N * width();
    ops_.pointwise.take_columns(buffers_.arriving + group_.rank() * own, qkv + sizes_.HD, 1.0F, sizes_.N,
                                width(), sizes_.QKV);
    RETURN_IF_ERROR(group_.gather_in_place(buffers_.arriving, own));
    for_each_piece([&](int64_t in_sequence, int64_t by_rank, int64_t elements) {
      backend_.copy(buffers_.kv + in_sequence, buffers_.arriving + by_rank, elements * int64_t{sizeof(T)});
    });
    return {};
  }

  kernels::Backend& backend_;
  const kernels::Ops<T>& ops_;
  TensorGroup group_;
  const plan::LlamaSizes& sizes_;
  plan::SharedKeys<T> buffers_;
  kernels::AttentionShape shape_{};
};

}  // namespace shardrun::model
