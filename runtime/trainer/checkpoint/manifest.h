// Manifest: what a checkpoint holds, and which part of it is in which file. To and from JSON, without I/O.
//
// The state is a list of blocks, and a block is a list of named tensors. Every writer (a rank) has one file. With
// tensor parallelism, tensor rank t has slices of the tensors; its slices of one block, one behind the other, are
// its "local block". Of that, shard rank s owns a range (runtime/plan/shard_layout.h), and where several replicas own
// the same range, each writes its part of it. So every element is written once, except that what all tensor ranks
// hold alike is in the files of each; a reader takes it from the first. The stages of a pipeline write some blocks each.
//
// manifest.json is one JSON object; its member "crc32c" is the checksum of the object without that member, dumped
// without white space and with sorted keys. docs/formats.md lists the members.
//
// Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/spec/lora_spec.h"
#include "runtime/trainer/model/fp8_state.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/shard/tensor_slice.h"

namespace shardrun::checkpoint {

using base::Result;

// How the state is spread over files.
struct Spread {
  int tensor_parallel = 1, shard_degree = 1, replicas = 1, pipeline_parallel = 1;

  int files() const { return tensor_parallel * shard_degree * replicas * pipeline_parallel; }
  friend bool operator==(const Spread&, const Spread&) = default;
};

// One writer. Files are numbered as global ranks are: ((stage · replicas + replica) · shard_degree + shard) · tensor_parallel + tensor.
struct Place {
  Spread spread;
  int tensor_rank = 0, shard_rank = 0, replica_rank = 0, stage = 0;

  int file() const;
  // Returns the part that this writer writes of what shard_rank owns of a block.
  plan::ElementRange part_of(const plan::ElementRange& owned) const;
};
Place place_of(const Spread& spread, int file);

struct TensorRecord {
  std::string name;
  std::vector<int64_t> full_shape;
  int split_dimension = -1;  // 0 or 1: tensor rank t holds [begins[t], begins[t] + counts[t]) along it
  // One a tensor rank, ascending, no holes, overlaps allowed; empty for -1.
  std::vector<int64_t> begins, counts;

  shard::TensorSlice slice(int tensor_rank) const;
  // Returns the part of the slice that no earlier tensor rank has.
  shard::TensorSlice first_holder_slice(int tensor_rank) const;
  friend bool operator==(const TensorRecord&, const TensorRecord&) = default;
};

struct BlockInfo {
  std::string name;
  std::vector<TensorRecord> tensors;
  int stage = 0;  // whose files have it

  int64_t elements(int tensor_rank) const;  // elements of the local block
  int64_t full_elements() const;
};

// Makes the list from the block layouts of every tensor rank (one list without tensor parallelism). Parameters must
// follow each other without gaps; otherwise it is a bug (CHECK).
std::vector<BlockInfo> describe_blocks(std::span<const std::vector<model::BlockLayout>> by_tensor_rank);

// Which training data a run reads; a checkpoint fits only a run with the same.
struct DataIdentity {
  int64_t corpus_tokens = 0;
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  // What data::Corpus::digest() says; empty where nobody knows it: in older checkpoints, on most ranks.
  std::string digest{};

  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};
// Returns whether both are the same data, as far as both know.
bool same_data(const DataIdentity& left, const DataIdentity& right);

// Which run wrote a checkpoint. Empty in older checkpoints, and where nobody says so.
struct RunIdentity {
  std::string name, id;
  std::string identity;  // record::LaunchPlan::identity

  // Returns whether they are certainly different runs.
  bool is_other(const RunIdentity& run) const {
    return !identity.empty() && !run.identity.empty() && identity != run.identity;
  }
};

// What the bits of a run on GPUs depend on beside its numbers; a run that continues it must have the same. Empty: a
// CPU's.
struct GpuKernels {
  std::string attention;  // whose implementation it is: train/attention_choice.h
  std::string products;   // kernels::Backend::product_table
};

// What adapters that were saved stand beside, and how. Weights themselves are in no checkpoint of theirs.
struct AdapterIdentity {
  spec::LoraSpec lora;
  uint32_t weights = 0;  // weights::load_frozen() says what it is

  friend bool operator==(const AdapterIdentity&, const AdapterIdentity&) = default;
};

// What a run that watches its validation loss knows of it.
struct BestLoss {
  int64_t step = 0;               // of the lowest so far
  double loss = 0.0;              // in nats
  int64_t evaluated_step = 0;     // of the newest evaluation
  int64_t evaluations_since = 0;  // how many there were since the best one
  bool kept = false;              // whether the checkpoint of that step is kept

  friend bool operator==(const BestLoss&, const BestLoss&) = default;
};

struct Manifest {
  // A checkpoint of a pipeline has the second version, which programs from before there were any refuse.
  static constexpr int kFormatVersion = 2, kPipelineVersion = 3;
  int64_t step = 0;           // optimizer steps done
  int epoch = 0;              // the attempt that wrote it
  int64_t data_position = 0;  // position of the next step's first sequence (runtime/trainer/data/loader.h)
  DataIdentity data;
  std::string model;  // a JSON object: the configuration as hf_config() of plan/model/network.h writes it
  Spread spread;
  std::vector<BlockInfo> blocks;
  // A run with fp8 has one for every tensor that is quantized, in the model's order; all ranks have the same.
  std::vector<kernels::Fp8History> fp8{};
  GpuKernels gpu{};
  RunIdentity run{};
  std::optional<AdapterIdentity> adapters{};  // where the tensors are those of [lora]
  std::optional<BestLoss> best{};             // where [evaluation] goes by it
};

std::string to_json(const Manifest& manifest);
// kCorrupt, or kUnsupported for another format version. What it accepts is consistent: every element has a file.
Result<Manifest> parse_manifest(std::string_view json);

// Succeeds when both have the same tensors, however they are spread; otherwise kInvalid gives the first difference
// in words.
Result<void> same_tensors(const Manifest& saved, const Manifest& wanted);
// Does the same with the blocks of a model that nobody cuts.
Result<void> same_tensors(const Manifest& saved, const std::vector<model::BlockLayout>& whole);

}  // namespace shardrun::checkpoint
