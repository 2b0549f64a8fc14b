// Experts: the mixture that stands in the place of a layer's feed-forward: a router, and experts that compute the tokens which it
// sends them. Nothing is dropped, and everything has one order: an expert sees its tokens by number, a token sums its experts from
// the most probable on.
//
//   forward    route(); then forward()
//   backward   backward(); then route_backward()
// The two of a direction belong to two blocks of the model: the router is a part of the layer's dense one.
//
// The balance of experts (Fedus et al. 2021; load_balancing_loss_func of transformers) is that of all layers together in one
// micro-batch: E·Σ f·p, with f an expert's share of choices and p its mean probability. Sequences without a target do not count.
// With experts on several ranks each has equal parts of them, in order. Rows go to the rank of their expert and their results come
// back, four times for a layer: its input and its result, then input, gradient and the input's gradient. An expert sees the rows of
// the first rank first, whenever they arrive, so that every sum has one order.
// Internal to runtime/trainer/model. Shapes as in plan/model/expert_buffers.h. Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/expert_buffers.h"
#include "runtime/plan/model/llama.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/experts.h"
#include "runtime/trainer/model/model.h"

namespace shardrun::model {

template <typename T>
class Experts {
 public:
  using Activations = plan::ExpertActivations<T>;

  // `ranks`: those that share the experts; null: this one has them all. All outlive this.
  Experts(const kernels::Ops<T>& ops, const plan::LlamaConfig& config, const plan::ExpertSizes& sizes,
          const plan::ExpertBuffers<T>& buffers, comm::Communicator* ranks);

  // Begins a micro-batch, of sequences that are `sequence_length` long.
  void begin(const Batch& batch, int64_t sequence_length);

  // Chooses experts for x (N,C) with the router's matrix (E,C), and notes their balance.
  Result<void> route(Activations& a, const T* x, const T* router);
  // Computes y (N,C) of x (N,C) with the experts' matrices, one expert behind the other: gate, up and down.
  Result<void> forward(T* y, Activations& a, const T* x, const T* matrices);
  // Computes or, with `accumulate`, adds dmatrices, and writes dx (N,C); `products`: which forward did not keep.
  struct Recomputed {
    bool products = false, activated = false;
  };
  Result<void> backward(T* dx, float* dmatrices, Activations& a, const T* dy, const T* x, const T* matrices,
                        bool accumulate, const Recomputed& recomputed);
  // Adds to dx (N,C) what comes through the router, and computes or adds drouter (E,C).
  void route_backward(T* dx, float* drouter, const Activations& a, const T* x, const T* router,
                      bool accumulate);

  // The balance's loss of the micro-batch times its sequences that count, after route() of all layers.
  double balance_sum() const;
  // Those sequences; 0 where nobody asks for balance.
  int64_t sequences() const { return sequences_; }

 private:
  // Finds the place of every row that is computed here among the rows of its expert.
  void place(const Activations& a);
  void place_own(const Activations& a);
  void place_arriving(const Activations& a);
  void begin_experts(const std::vector<int64_t>& rows);
  // rows (rows,C), by expert, become the tokens x (N,C) that chose it, on this rank or another.
  Result<void> bring(T* rows, const T* x);
  // y (N,C) becomes the sums of what was made of its tokens, times the weights (N,k); null: times 1.
  Result<void> take_back(T* y, const float* weights);
  // Multiplies with the weights and finds their gradients, which lie where their tokens are.
  Result<void> weigh(const Activations& a);
  // Moves elements of this rank's rows, as many for each, to where their experts are, or back.
  template <typename Element>
  Result<void> exchange(Element* to, const Element* from, int64_t each, bool back);
  int64_t rows_of(int64_t expert) const { return begins_[expert + 1] - begins_[expert]; }
  int64_t rows() const { return begins_.back(); }
  const T* gate_up_of(const T* matrices, int64_t expert) const { return matrices + expert * 3 * s_.F * s_.C; }
  const T* down_of(const T* matrices, int64_t expert) const {
    return gate_up_of(matrices, expert) + 2 * s_.F * s_.C;
  }
  // Calls body(expert, begin, rows) for the pieces of all experts' rows: powers of two, the largest first.
  template <typename Body>
  void for_pieces(const Body& body) const;
  void multiply_inputs(Activations& a, const T* matrices);
  // dw (O,inputs) of each expert, `offset` elements into its matrices.
  void weight_gradients(float* dmatrices, int64_t offset, const T* dy, const T* x, int64_t inputs, int64_t O,
                        bool accumulate);

  const kernels::Ops<T>& ops_;
  spec::ExpertSpec experts_;
  plan::ExpertSizes s_;
  const plan::ExpertBuffers<T>& buffers_;
  kernels::RouterShape router_;
  std::vector<int64_t> begins_;  // of each expert's rows
  comm::Communicator* ranks_;
  std::vector<int64_t> sends_, receives_;  // rows to and from each rank
  // The balance of the micro-batch:
  std::vector<uint8_t> counts_;                // whether each sequence does
  std::vector<double> choices_, probability_;  // sums over layers and tokens, by expert
  double rows_routed_ = 0.0;
  int64_t sequence_length_ = 1, sequences_ = 0;
  float scale_ = 0.0F;
};

}  // namespace shardrun::model
