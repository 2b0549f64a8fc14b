#include "runtime/trainer/model/experts.h"

#include <algorithm>
#include <bit>

namespace shardrun::model {

using plan::kExpertRows;

template <typename T>
Experts<T>::Experts(const kernels::Ops<T>& ops, const plan::LlamaConfig& config,
                    const plan::ExpertSizes& sizes, const plan::ExpertBuffers<T>& buffers)
    : ops_(ops),
      experts_(config.experts),
      s_(sizes),
      buffers_(buffers),
      router_{sizes.N, sizes.E, sizes.k, config.experts.normalize},
      begins_(sizes.own + 1),
      choices_(sizes.E),
      probability_(sizes.E) {}

template <typename T>
void Experts<T>::begin(const Batch& batch, int64_t sequence_length) {
  scale_ = static_cast<float>(experts_.balance) * batch.sequence_scale;
  sequence_length_ = sequence_length;
  counts_.assign(s_.N / sequence_length, 0);
  for (int64_t n = 0; n < s_.N; ++n)
    if (batch.targets[n] >= 0) counts_[n / sequence_length] = 1;
  sequences_ = scale_ > 0.0F ? std::count(counts_.begin(), counts_.end(), 1) : 0;
  std::fill(choices_.begin(), choices_.end(), 0.0);
  std::fill(probability_.begin(), probability_.end(), 0.0);
  rows_routed_ = 0.0;
}

template <typename T>
void Experts<T>::route(Activations& a, const T* x, const T* router) {
  ops_.products.linear_forward_fp32(a.probabilities, x, router, s_.N, s_.C, s_.E);
  kernels::route(a.probabilities, a.chosen, a.weights, router_);
  if (sequences_ == 0) return;
  for (int64_t n = 0; n < s_.N; ++n) {
    if (counts_[n / sequence_length_] == 0) continue;
    for (int64_t j = 0; j < s_.k; ++j) choices_[a.chosen[n * s_.k + j]] += 1.0;
    for (int64_t e = 0; e < s_.E; ++e) probability_[e] += a.probabilities[n * s_.E + e];
    rows_routed_ += 1.0;
  }
}

template <typename T>
double Experts<T>::balance_sum() const {
  if (sequences_ == 0) return 0.0;
  double sum = 0.0;
  for (int64_t e = 0; e < s_.E; ++e) sum += choices_[e] / rows_routed_ * (probability_[e] / rows_routed_);
  return experts_.balance * static_cast<double>(s_.E * sequences_) * sum;
}

template <typename T>
void Experts<T>::place(const Activations& a) {
  const int64_t assignments = s_.N * s_.k;
  std::vector<int64_t> next(s_.own);
  for (int64_t i = 0; i < assignments; ++i) ++next[a.chosen[i]];
  for (int64_t e = 0; e < s_.own; ++e) {
    const int64_t padded = (next[e] + kExpertRows - 1) / kExpertRows * kExpertRows;
    next[e] = begins_[e];
    begins_[e + 1] = begins_[e] + padded;
  }
  std::fill_n(buffers_.sources, rows(), -1);
  for (int64_t i = 0; i < assignments; ++i) {
    const int64_t row = next[a.chosen[i]]++;
    buffers_.sources[row] = static_cast<int32_t>(i);
    buffers_.places[i] = static_cast<int32_t>(row);
  }
}

template <typename T>
template <typename Body>
void Experts<T>::for_pieces(const Body& body) const {
  for (int64_t e = 0; e < s_.own; ++e) {
    for (int64_t at = begins_[e]; at < begins_[e + 1];) {
      const auto piece = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(begins_[e + 1] - at)));
      body(e, at, piece);
      at += piece;
    }
  }
}

template <typename T>
void Experts<T>::multiply_inputs(Activations& a, const T* matrices) {
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_forward(a.gate_up + at * 2 * s_.F, buffers_.inputs + at * s_.C,
                                 gate_up_of(matrices, e), piece, s_.C, 2 * s_.F);
  });
}

template <typename T>
Result<void> Experts<T>::forward(T* y, Activations& a, const T* x, const T* matrices) {
  place(a);
  kernels::gather_rows(buffers_.inputs, buffers_.sources, x, rows(), s_.C, s_.k);
  multiply_inputs(a, matrices);
  ops_.pointwise.swiglu_forward(a.activated, a.gate_up, rows(), s_.F);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_forward(buffers_.results + at * s_.C, a.activated + at * s_.F, down_of(matrices, e),
                                 piece, s_.F, s_.C);
  });
  kernels::combine_rows(y, buffers_.places, a.weights, buffers_.results, s_.N, s_.k, s_.C);
  return {};
}

template <typename T>
void Experts<T>::weight_gradients(float* dmatrices, int64_t offset, const T* dy, const T* x, int64_t inputs,
                                  int64_t O, bool accumulate) {
  const int64_t elements = 3 * s_.F * s_.C;
  for (int64_t e = 0; e < s_.own && !accumulate; ++e)
    if (rows_of(e) == 0) std::fill_n(dmatrices + e * elements + offset, O * inputs, 0.0F);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_backward_weight(dmatrices + e * elements + offset, dy + at * O, x + at * inputs,
                                         piece, inputs, O, accumulate || at > begins_[e]);
  });
}

template <typename T>
Result<void> Experts<T>::backward(T* dx, float* dmatrices, Activations& a, const T* dy, const T* x,
                                  const T* matrices, bool accumulate, const Recomputed& recomputed) {
  const int64_t C = s_.C, F = s_.F;
  const plan::ExpertBuffers<T>& b = buffers_;
  place(a);
  kernels::gather_rows(b.inputs, b.sources, x, rows(), C, s_.k);
  if (recomputed.products) multiply_inputs(a, matrices);
  if (recomputed.activated) ops_.pointwise.swiglu_forward(a.activated, a.gate_up, rows(), F);
  kernels::gather_rows(b.results, b.sources, dy, rows(), C, s_.k);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_backward_input(b.dactivated + at * F, b.results + at * C, down_of(matrices, e),
                                        piece, F, C);
  });
  kernels::weigh_rows(b.dweights, b.dactivated, b.results, a.activated, a.weights, b.sources, rows(), F, C);
  weight_gradients(dmatrices, 2 * F * C, b.results, a.activated, F, C, accumulate);
  ops_.pointwise.swiglu_backward(b.dgate_up, b.dactivated, a.gate_up, rows(), F);
  weight_gradients(dmatrices, 0, b.dgate_up, b.inputs, C, 2 * F, accumulate);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_backward_input(b.results + at * C, b.dgate_up + at * 2 * F, gate_up_of(matrices, e),
                                        piece, C, 2 * F);
  });
  kernels::combine_rows(dx, b.places, nullptr, b.results, s_.N, s_.k, C);
  return {};
}

template <typename T>
void Experts<T>::route_backward(T* dx, float* drouter, const Activations& a, const T* x, const T* router,
                                bool accumulate) {
  std::vector<float> of_expert(s_.E);
  kernels::BalanceGradient balance{nullptr, counts_.data(), sequence_length_};
  if (sequences_ > 0) {
    const double factor = static_cast<double>(scale_) * static_cast<double>(s_.E * sequences_) / rows_routed_;
    for (int64_t e = 0; e < s_.E; ++e) of_expert[e] = static_cast<float>(factor * choices_[e] / rows_routed_);
    balance.of_expert = of_expert.data();
  }
  kernels::route_backward(buffers_.dlogits, buffers_.dweights, a.probabilities, a.chosen, router_, balance);
  ops_.products.linear_backward_weight(drouter, buffers_.dlogits, x, s_.N, s_.C, s_.E, accumulate);
  ops_.products.linear_backward_input(dx, buffers_.dlogits, router, s_.N, s_.C, s_.E, /*accumulate=*/true);
}

template class Experts<float>;
template class Experts<kernels::Bf16>;

}  // namespace shardrun::model
