// Adapters: the narrow matrices that [lora] trains beside a Llama's frozen weights, where each lies, and what it needs.
//
// A block of adapters belongs to each block of the model; those of the embedding and the head are empty. In a layer's flat
// buffer, A (rank, inputs) and B (outputs, rank) of each matrix lie one behind the other, in the order of LoraSpec::matrices.
// A begins with random numbers of the variance of PEFT's (uniform within ±1/√inputs), B with zeros.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/model/block_layout.h"
#include "runtime/plan/model/llama.h"
#include "runtime/plan/model/ops.h"

namespace shardrun::plan {

// One adapted matrix of a layer. Its result is `outputs` columns, from `column` on, of a product whose rows have `stride`:
// q, k and v share a product, and so do gate and up.
struct Adapter {
  spec::LoraMatrix matrix{};
  int64_t inputs = 0, outputs = 0, column = 0, stride = 0;
  int64_t a = 0, b = 0;  // where A and B begin in the layer's buffer
};

// Returns those of a layer; none where all weights are trained.
std::vector<Adapter> adapters_of(const LlamaConfig& config);
// Returns the blocks that are trained in the place of block_layouts(), with PEFT's names.
std::vector<BlockLayout> adapter_layouts(const LlamaConfig& config);
// Returns the widest result of an adapter; 0 where there is none.
int64_t widest_adapter(const LlamaConfig& config);
// Adds the products of a layer's adapters on `rows` tokens, and takes out the gradients of frozen matrices.
void adapt(OpList& list, const LlamaConfig& config, int64_t rows);

}  // namespace shardrun::plan
