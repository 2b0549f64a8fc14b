// The CPU's ops (kernels/ops.h), each kind from the file that has its loops. This header is internal to kernels/cpu.
//
// Thread rule: the ops have no state.
#pragma once

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {

template <typename T>
const ProductOps<T>& cpu_products();
template <typename T>
const EmbeddingOps<T>& cpu_embedding();
template <typename T>
const NormOps<T>& cpu_norms();
template <typename T>
const AttentionOps<T>& cpu_attention();
template <typename T>
const PointwiseOps<T>& cpu_pointwise();
template <typename T>
const ClassifierOps<T>& cpu_classifier();
const OptimizerOps& cpu_optimizer();

}  // namespace shardrun::kernels
