#include "runtime/trainer/model/experts.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace shardrun::model {

using plan::kExpertRows;

template <typename T>
Experts<T>::Experts(const kernels::Ops<T>& ops, const plan::LlamaConfig& config,
                    const plan::ExpertSizes& sizes, const plan::ExpertBuffers<T>& buffers,
                    comm::Communicator* ranks)
    : ops_(ops),
      experts_(config.experts),
      s_(sizes),
      buffers_(buffers),
      router_{sizes.N, sizes.E, sizes.k, config.experts.normalize},
      begins_(sizes.own + 1),
      ranks_(ranks),
      sends_(sizes.ranks),
      receives_(sizes.ranks),
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
Result<void> Experts<T>::route(Activations& a, const T* x, const T* router) {
  ops_.products.linear_forward_fp32(a.probabilities, x, router, s_.N, s_.C, s_.E);
  kernels::route(a.probabilities, a.chosen, a.weights, router_);
  for (int64_t n = 0; n < s_.N && sequences_ > 0; ++n) {
    if (counts_[n / sequence_length_] == 0) continue;
    for (int64_t j = 0; j < s_.k; ++j) choices_[a.chosen[n * s_.k + j]] += 1.0;
    for (int64_t e = 0; e < s_.E; ++e) probability_[e] += a.probabilities[n * s_.E + e];
    rows_routed_ += 1.0;
  }
  if (ranks_ == nullptr) return {};
  const auto all = std::span(a.counts, s_.ranks * s_.E);
  const auto mine = all.subspan(ranks_->rank() * s_.E, s_.E);
  std::fill(mine.begin(), mine.end(), 0);
  for (int64_t i = 0; i < s_.N * s_.k; ++i) ++mine[a.chosen[i]];
  return comm::complete(*ranks_, ranks_->all_gather(std::as_bytes(mine), std::as_writable_bytes(all)));
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
  if (ranks_ == nullptr) return place_own(a);
  place_arriving(a);
}

// Rows of each expert, filled up.
template <typename T>
void Experts<T>::begin_experts(const std::vector<int64_t>& rows) {
  for (int64_t e = 0; e < s_.own; ++e)
    begins_[e + 1] = begins_[e] + (rows[e] + kExpertRows - 1) / kExpertRows * kExpertRows;
  std::fill_n(buffers_.sources, begins_.back(), -1);
}

template <typename T>
void Experts<T>::place_own(const Activations& a) {
  std::vector<int64_t> next(s_.own);
  for (int64_t i = 0; i < s_.N * s_.k; ++i) ++next[a.chosen[i]];
  begin_experts(next);
  std::copy(begins_.begin(), begins_.end() - 1, next.begin());
  for (int64_t i = 0; i < s_.N * s_.k; ++i) {
    const int64_t row = next[a.chosen[i]]++;
    buffers_.sources[row] = static_cast<int32_t>(i);
    buffers_.places[i] = static_cast<int32_t>(row);
  }
}

template <typename T>
void Experts<T>::place_arriving(const Activations& a) {
  const int64_t me = ranks_->rank(), first = me * s_.own;
  const auto count = [&](int64_t rank, int64_t expert) { return int64_t{a.counts[rank * s_.E + expert]}; };
  // What leaves: this rank's assignments by expert.
  std::vector<int64_t> next(s_.E);
  for (int64_t e = 1; e < s_.E; ++e) next[e] = next[e - 1] + count(me, e - 1);
  for (int64_t i = 0; i < s_.N * s_.k; ++i) {
    const int64_t position = next[a.chosen[i]]++;
    buffers_.order[position] = static_cast<int32_t>(i);
    buffers_.positions[i] = static_cast<int32_t>(position);
  }
  // What arrives: of each rank its rows by expert; an expert takes those of the first rank first.
  std::vector<int64_t> rows(s_.own);
  for (int64_t rank = 0; rank < s_.ranks; ++rank) {
    sends_[rank] = receives_[rank] = 0;
    for (int64_t e = 0; e < s_.own; ++e) {
      sends_[rank] += count(me, rank * s_.own + e);
      receives_[rank] += count(rank, first + e);
      rows[e] += count(rank, first + e);
    }
  }
  begin_experts(rows);
  std::copy(begins_.begin(), begins_.end() - 1, rows.begin());
  int32_t arrived = 0;
  for (int64_t rank = 0; rank < s_.ranks; ++rank) {
    for (int64_t e = 0; e < s_.own; ++e) {
      for (int64_t i = 0; i < count(rank, first + e); ++i, ++arrived) {
        buffers_.sources[rows[e]] = arrived;
        buffers_.places[arrived] = static_cast<int32_t>(rows[e]++);
      }
    }
  }
}

template <typename T>
template <typename Element>
Result<void> Experts<T>::exchange(Element* to, const Element* from, int64_t each, bool back) {
  const auto bytes_of = [&](const std::vector<int64_t>& rows) {
    std::vector<int64_t> bytes;
    for (const int64_t count : rows) bytes.push_back(count * each * int64_t{sizeof(Element)});
    return bytes;
  };
  const auto send = bytes_of(back ? receives_ : sends_), receive = bytes_of(back ? sends_ : receives_);
  const int64_t sent = std::accumulate(send.begin(), send.end(), int64_t{0});
  const int64_t received = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  const std::span out(reinterpret_cast<const std::byte*>(from), sent);
  const std::span in(reinterpret_cast<std::byte*>(to), received);
  return comm::complete(*ranks_, ranks_->all_to_all({out, send, in, receive}));
}

template <typename T>
Result<void> Experts<T>::bring(T* rows_of_experts, const T* x) {
  const plan::ExpertBuffers<T>& b = buffers_;
  if (ranks_ == nullptr) {
    kernels::gather_rows(rows_of_experts, b.sources, x, rows(), s_.C, s_.k);
    return {};
  }
  kernels::gather_rows(b.outgoing, b.order, x, s_.N * s_.k, s_.C, s_.k);
  RETURN_IF_ERROR(exchange(b.incoming, b.outgoing, s_.C, /*back=*/false));
  kernels::gather_rows(rows_of_experts, b.sources, b.incoming, rows(), s_.C, 1);
  return {};
}

template <typename T>
Result<void> Experts<T>::take_back(T* y, const float* weights) {
  const plan::ExpertBuffers<T>& b = buffers_;
  if (ranks_ == nullptr) {
    kernels::combine_rows(y, b.places, weights, b.results, s_.N, s_.k, s_.C);
    return {};
  }
  const int64_t arrived = std::accumulate(receives_.begin(), receives_.end(), int64_t{0});
  kernels::gather_rows(b.incoming, b.places, b.results, arrived, s_.C, 1);
  RETURN_IF_ERROR(exchange(b.outgoing, b.incoming, s_.C, /*back=*/true));
  kernels::combine_rows(y, b.positions, weights, b.outgoing, s_.N, s_.k, s_.C);
  return {};
}

template <typename T>
Result<void> Experts<T>::weigh(const Activations& a) {
  const plan::ExpertBuffers<T>& b = buffers_;
  if (ranks_ == nullptr) {
    kernels::weigh_rows(b.dweights, b.dactivated, b.results, a.activated, a.weights, b.sources, rows(), s_.F,
                        s_.C);
    return {};
  }
  kernels::gather_rows(b.outgoing_weights, b.order, a.weights, s_.N * s_.k, 1, 1);
  RETURN_IF_ERROR(exchange(b.incoming_weights, b.outgoing_weights, 1, /*back=*/false));
  kernels::weigh_rows(b.incoming_dweights, b.dactivated, b.results, a.activated, b.incoming_weights,
                      b.sources, rows(), s_.F, s_.C);
  RETURN_IF_ERROR(exchange(b.outgoing_weights, b.incoming_dweights, 1, /*back=*/true));
  kernels::gather_rows(b.dweights, b.positions, b.outgoing_weights, s_.N * s_.k, 1, 1);
  return {};
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
  RETURN_IF_ERROR(bring(buffers_.inputs, x));
  multiply_inputs(a, matrices);
  ops_.pointwise.swiglu_forward(a.activated, a.gate_up, rows(), s_.F);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_forward(buffers_.results + at * s_.C, a.activated + at * s_.F, down_of(matrices, e),
                                 piece, s_.F, s_.C);
  });
  return take_back(y, a.weights);
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
  RETURN_IF_ERROR(bring(b.inputs, x));
  if (recomputed.products) multiply_inputs(a, matrices);
  if (recomputed.activated) ops_.pointwise.swiglu_forward(a.activated, a.gate_up, rows(), F);
  RETURN_IF_ERROR(bring(b.results, dy));
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_backward_input(b.dactivated + at * F, b.results + at * C, down_of(matrices, e),
                                        piece, F, C);
  });
  RETURN_IF_ERROR(weigh(a));
  weight_gradients(dmatrices, 2 * F * C, b.results, a.activated, F, C, accumulate);
  ops_.pointwise.swiglu_backward(b.dgate_up, b.dactivated, a.gate_up, rows(), F);
  weight_gradients(dmatrices, 0, b.dgate_up, b.inputs, C, 2 * F, accumulate);
  for_pieces([&](int64_t e, int64_t at, int64_t piece) {
    ops_.products.linear_backward_input(b.results + at * C, b.dgate_up + at * 2 * F, gate_up_of(matrices, e),
                                        piece, C, 2 * F);
  });
  return take_back(dx, nullptr);
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
