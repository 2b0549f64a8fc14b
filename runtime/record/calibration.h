// Calibration: what a cluster was measured to do, as TOML; `shardrun calibrate` writes it, predictions read it.
//
// Seconds of computing are of CPU: what a rank with its CPUs to itself would take, measured while every rank was busy, so
// that what they share (caches, memory, clocks) is in it and what time slicing does is not. Seconds of collectives are of
// the wall, until the slowest rank was done. docs/formats.md has the file.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::record {

using base::Result;

// Quartiles of what was measured, over ranks and repeats.
struct Spread {
  double low = 0.0, median = 0.0, high = 0.0;

  static Spread of(std::vector<double> values);  // zeros of none
};

struct GemmRate {
  std::string type;  // "bf16", "fp32"
  int64_t size = 0;  // of square matrices
  Spread flops_per_second;
};

// The built-in trainer's blocks of one shape of a Llama, in bf16, with every activation kept.
struct StepProbe {
  int64_t micro_batch = 0, sequence_length = 0;
  int64_t hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  Spread table_forward, table_backward, layer_forward, layer_backward, head_forward, head_backward;
  Spread layer_backward_selective;  // with selective checkpointing

  int64_t tokens() const { return micro_batch * sequence_length; }
};

// A collective, with `nodes` nodes at it and the others quiet.
struct CollectiveProbe {
  std::string kind;  // "all_gather", "reduce_scatter", "all_reduce"
  // "node": the ranks of each; "network": one rank of each node, as often as a node has ranks; "all".
  std::string among;
  int64_t nodes = 1, ranks = 0;  // ranks: of one group
  int64_t bytes = 0;  // of the buffer that a group holds together (all_reduce: that each rank holds)
  // With two of them under way while nothing computes, from one's end to the next one's. Of the smallest this is half of what
  // one takes.
  Spread seconds;
  double cpu_seconds = 0.0;  // that one costs its rank
  // The share of its speed that it has while its rank computes, for what moves it waits for a CPU then. Below 256 KiB a rank this
  // is the pace of the next larger one of its kind and group.
  double pace = 1.0;
  // How many times cpu_seconds it costs while its rank computes: more where both find cold caches and change places, less where
  // nobody looks for it without end meanwhile. Measured with the pace, and taken from the same size.
  double cpu_beside = 1.0;
};

// What is measured again when only the network is.
struct NetworkCalibration {
  double network_measured_at = 0.0;  // Unix seconds
  std::string plugin, provider;      // versions and names
  std::vector<std::string> node_names;
  int64_t nodes = 0, ranks_per_node = 0;
  int64_t machines = 0;  // that the nodes are on: kernels that are running. Fewer than nodes: they share CPUs
  int64_t cpus_per_node = 0;  // that ranks may use
  std::vector<CollectiveProbe> collectives;
};

struct Calibration : NetworkCalibration {
  static constexpr int kFormatVersion = 5;
  double measured_at = 0.0;             // Unix seconds, of the compute part
  std::string shardrun, cpu;            // version and name
  int64_t cpus_per_rank = 0;            // in both parts
  int64_t memory_bytes = 0;             // of a node
  Spread memory_bytes_per_second;       // copied, read and written, of one rank
  Spread update_seconds_per_parameter;  // of the optimizer, with norm and conversion
  std::vector<GemmRate> gemms;
  std::vector<StepProbe> steps;
};

// TOML, with comments that say what each part is.
std::string to_toml(const Calibration& calibration);
// What was measured of the network alone has no steps. kInvalid, with file, line and column; kUnsupported for another
// format.
Result<Calibration> parse_calibration(std::string_view text, std::string_view file_name);

}  // namespace shardrun::record
