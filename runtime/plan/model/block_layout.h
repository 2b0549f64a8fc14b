// BlockLayout: the parameters of one block of a model (embedding, one layer, head), which lie in one flat buffer.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::plan {

// One tensor inside a block's flat buffer.
struct ParameterInfo {
  std::string name;            // Hugging Face name, e.g. "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // row-major; linear weights are (out, in)
  int64_t offset = 0;          // elements from the start of the block
  bool weight_decay = true;    // false for norms and biases
  double init_stddev = 0.0;    // of a zero-mean normal; 0: every element is init_value
  double init_value = 1.0;
  // Tensor parallelism: this is the slice [split_begin, split_begin + shape[split_dimension]) of the full tensor
  // along dimension 0 or 1. -1: the whole tensor, which every tensor-parallel rank holds.
  std::vector<int64_t> full_shape{};  // empty: as `shape`
  int split_dimension = -1;
  int64_t split_begin = 0;

  const std::vector<int64_t>& whole_shape() const { return full_shape.empty() ? shape : full_shape; }
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
};

struct BlockLayout {
  std::string name;  // "embedding", "layer 3", "head"
  std::vector<ParameterInfo> parameters;
  int64_t elements = 0;  // sum; no padding here, the sharding engine pads
  // Whether each rank of the shard group computes its own part of the block alone, which is then neither gathered nor reduced.
  bool stays = false;
  // Whether only other stages of a pipeline have it: its tensors are known here, and nothing of them is held.
  bool elsewhere = false;

  // Puts the parameter behind those that are there.
  void append(ParameterInfo parameter) {
    parameter.offset = elements;
    elements += parameter.elements();
    parameters.push_back(std::move(parameter));
  }
};

}  // namespace shardrun::plan
