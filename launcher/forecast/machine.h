// What a prediction knows of a machine and of the model that it trains: counts and peaks, no measurements.
//
// Units: bytes, seconds, FLOP; one accelerator, one direction of a link, unless a name says otherwise.
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Kinds whose arithmetic is used alike well; constants.h has what each of them reaches.
enum class Generation { kAmpere, kHopper, kTrainium };

struct Machine {
  std::string name;
  Generation generation = Generation::kAmpere;
  int per_node = 8;               // accelerators
  double peak = 312e12;           // dense bf16 FLOP/s
  double fp8_peak = 0.0;          // 0: none
  double memory_bytes = 42.9e9;   // of one accelerator
  double memory_rate = 1.555e12;  // bytes/s of its memory
  double link_rate = 300e9;       // bytes/s to the others of its node
  double network_rate = 50e9;     // bytes/s of the node
  double host_rate = 20e9;        // bytes/s between accelerator and host memory
  double host_memory = 0.0;       // bytes of a node; 0: not known
  double dollars_per_hour = 0.0;  // of a node; 0: not known
};

struct ModelShape {
  int layers = 0, hidden = 0, kv_width = 0, ffn = 0, ffn_matrices = 3, vocab = 0;
  bool tied = false;
  bool causal = true;

  double layer_parameters() const;
  double table_parameters() const { return static_cast<double>(vocab) * hidden; }
  double parameters() const { return layers * layer_parameters() + (tied ? 1.0 : 2.0) * table_parameters(); }
  // Forward and backward, without recomputation; half of the attention matrix where it is causal.
  double flops_per_token(int sequence_length) const;
  // Of them, those of the linear layers of blocks: without attention's scores and the head.
  double linear_flops_per_token() const { return 6.0 * layers * (layer_parameters() - 2.0 * hidden); }
};

// `trainer`: "llama" or "bert", as [program] says it.
ModelShape shape_of(const spec::ModelSpec& model, const std::string& trainer);

}  // namespace shardrun::launcher
