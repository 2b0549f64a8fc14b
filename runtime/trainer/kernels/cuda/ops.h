// The ops of kernels/ops.h and kernels/fp8.h on an NVIDIA GPU, each kind made by the file that has its kernels. What differs
// from a CPU's:
//
//   - ops are put on the device's stream in the order of the calls and never wait; kernels/cuda/device.h says how they
//     fail
//   - matrix products choose their kernels (Device::tune_products); everything else has the same bits on every run,
//     for any order of the GPU's blocks: sums have a fixed order, nothing is added atomically
//   - embedding's gradient has the CPU's bits (tokens are sorted with their rows); the losses' sum has an order of its own
//   - attention in bf16 with D of 64 or 128 runs on the tensor cores; any other D up to 256, and fp32, runs in plain fp32
//     and is not meant for training
//   - accumulate() takes up to 32 values; N = 0 and the like are allowed and write what an empty sum is
//   - fp8 sizes that are no multiples of 16 are multiplied by a plain loop, slowly (Device::plain_products)
//
// Floors are bytes through the GPU's memory, where s = sizeof(T), or operations; no version of an op is faster than
// its floor over the GPU's rate (tests/bench/gpu_kernels_bench.cpp prints the share):
//
//   products       2·N·C·O operations on the tensor cores (bf16, fp8) or in fp32 (never TF32); bias_backward s·N·O bytes
//   embedding      2s·N·C; backward s·N·C + 4·V·C; sum 4s·N·C at most (tables stay in the cache); scatter s·C·(M + N)
//   norms          forward 2s·N·C, backward 4s·N·C (dx is read too), LayerNorm's 3s·N·C; a residual adds 2s·N·C
//   attention      for each head and visible pair of query and key 4·D operations forward, 10·D backward (14·D on the
//                  tensor cores: scores are made twice so that no gradient is added atomically); rope 2s an element
//   pointwise      for each result SwiGLU 3s forward, 5s backward; GELU and tanh 2s and 3s; add 3s; conversions 6
//   classifier     4·N·V + s·N·V; the second read of a row comes from the cache
//   optimizer      for each element AdamW 28; LAMB 24 to measure and 16 to apply; a sum of squares 4
//   quantizing     (s + 2) an element, and s more where the present values decide the scale
//
// Thread rule: as Device, which outlives what it made. Limits: hidden sizes up to 24576 in norms; rows up to 2^31 - 1.
// State: tested on an H100, and on an emulated GPU (tests/emulation).
// Tests: tests/gpu.
#pragma once

#include <memory>

#include "runtime/trainer/kernels/cuda/device.h"
#include "runtime/trainer/kernels/fp8.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::cuda {

template <typename T>
std::unique_ptr<ProductOps<T>> make_products(Device& device);
template <typename T>
std::unique_ptr<EmbeddingOps<T>> make_embedding(Device& device);
template <typename T>
std::unique_ptr<NormOps<T>> make_norms(Device& device);
template <typename T>
std::unique_ptr<AttentionOps<T>> make_attention(Device& device);
template <typename T>
std::unique_ptr<PointwiseOps<T>> make_pointwise(Device& device);
template <typename T>
std::unique_ptr<ClassifierOps<T>> make_classifier(Device& device);
std::unique_ptr<OptimizerOps> make_optimizer(Device& device);
std::unique_ptr<Fp8Ops> make_fp8(Device& device);

// All ops on one type, as the backend has them.
template <typename T>
class GpuOps {
 public:
  explicit GpuOps(Device& device)
      : products_(make_products<T>(device)),
        embedding_(make_embedding<T>(device)),
        norms_(make_norms<T>(device)),
        attention_(make_attention<T>(device)),
        pointwise_(make_pointwise<T>(device)),
        classifier_(make_classifier<T>(device)) {}
  const Ops<T>& all() const { return all_; }

 private:
  std::unique_ptr<ProductOps<T>> products_;
  std::unique_ptr<EmbeddingOps<T>> embedding_;
  std::unique_ptr<NormOps<T>> norms_;
  std::unique_ptr<AttentionOps<T>> attention_;
  std::unique_ptr<PointwiseOps<T>> pointwise_;
  std::unique_ptr<ClassifierOps<T>> classifier_;
  Ops<T> all_{*products_, *embedding_, *norms_, *attention_, *pointwise_, *classifier_};
};

}  // namespace shardrun::kernels::cuda
