// JobSpec: what a job.toml asks for, checked. The one description of a job that every part of shardrun reads.
//
// parse_job_spec turns text into this struct or into an Error whose message is
//   file:line:column: what is wrong; what to do
// Unknown keys, wrong types and impossible values are refused; nothing is guessed. Every field below carries
// the default that applies when the key is absent. The grammar with an example is docs/formats.md.
// Relative paths are relative to the working directory that shardrun was started in, as with sbatch.
//
// Thread rule: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/base/result.h"
#include "runtime/spec/container_spec.h"
#include "runtime/spec/strategy.h"

namespace shardrun::spec {

using base::DeviceKind;
using base::DType;
using base::Result;

enum class SchedulerKind { kAuto, kLocal, kSlurm, kMpirun };
enum class Scaling { kStrong, kWeak };
enum class Uneven { kRefuse, kDistribute };
enum class Schedule { kConstant, kLinear, kCosine, kWarmupStableDecay };
enum class OptimizerKind { kAdamW, kLamb };
enum class Checkpointing { kNone, kSelective, kFull };
enum class GpuAttention { kAuto, kCudnn, kOwn };

struct ResourcesSpec {  // [resources]
  int nodes = 1;
  int ranks_per_node = 1;
  int cpus_per_rank = 1;
  std::optional<std::chrono::seconds> time_limit;  // "HH:MM:SS", "MM:SS" or "D-HH:MM:SS", as Slurm writes it
  std::string partition, account, constraint, exclude;
  bool exclusive = false;
  int gpus_per_node = 0;                 // asked of Slurm, and looked for by the preflight
  DeviceKind device = DeviceKind::kCpu;  // what the built-in trainer computes with
  int ranks_per_gpu = 1;                 // that share one
};

struct ClusterSpec {                               // [cluster]
  SchedulerKind scheduler = SchedulerKind::kAuto;  // auto: slurm inside an allocation, else local
  std::string instance;  // a type of cluster-configs/instances.toml, which ranks per node follow; or empty
  std::string config;    // a cluster's TOML (launcher/cluster/spec.h), whose queue names the type; or empty
};

struct ProgramSpec {                 // [program]: exactly one of the two
  std::string trainer;               // "llama" or "bert"
  std::vector<std::string> command;  // argv, never re-parsed by a shell
};

struct ModelSpec {  // [model]: a preset, or every size; sizes beside a preset override it
  std::string preset;
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  int max_positions = 512;       // of BERT
  bool tied_embeddings = false;  // of a Llama: one table for the embedding and the classifier
  std::string init = "random";   // or a .safetensors file, or a folder of them with their index
};

struct DataSpec {                       // [data]
  std::vector<std::string> files;       // plain text, or token files that `shardrun data` made
  std::vector<std::string> validation;  // the same, never trained on
  std::string tokenizer = "byte";       // of plain text: 256 tokens, one a byte
  int sequence_length = 256;
  uint64_t seed = 1;              // of the weights' initial values and of the order of sequences
  int validation_sequences = 64;  // how many sequences of `validation` an evaluation reads at most
};

struct BatchSpec {  // [batch], in sequences
  std::optional<int64_t> global_batch;
  std::optional<int64_t> gradient_accumulation;
  int micro_batch = 1;
  Scaling scaling = Scaling::kStrong;
  Uneven uneven = Uneven::kRefuse;  // a global_batch that does not divide: refused, or spread exactly
};

struct ShardingSpec {  // [sharding]
  Strategy strategy = Strategy::kFullShard;
  int shard_degree =
      0;  // ranks that share one copy of the model's state, of hybrid_shard; 0: those of a node
  int tensor_parallel = 1;  // ranks that share each matrix
  int prefetch = 1;         // how many blocks are gathered ahead
};

struct PrecisionSpec {              // [precision]
  DType parameters = DType::kBf16;  // of gathered parameters and activations; masters are fp32
  bool fp8 = false;                 // the linear layers of a Llama's blocks, on GPUs
};

struct GpuSpec {                                 // [gpu]: of the trainer on GPUs
  GpuAttention attention = GpuAttention::kAuto;  // whose
  bool tune_products = true;                     // times the kernels of matrix products that no table knows
  bool graphs = true;                            // a layer's ops are started as one CUDA graph
};

struct MemorySpec {  // [memory]: what to trade for less memory
  Checkpointing activation_checkpointing = Checkpointing::kNone;
  bool activation_offload = false;  // activations that wait for backward lie in a file
  bool optimizer_offload = false;   // the optimizer's moments lie in a file
  std::string directory;            // of those files, one a rank; empty: the run directory
};

struct OptimizerSpec {  // [optimizer]
  OptimizerKind kind = OptimizerKind::kAdamW;
  int64_t steps = 100;
  double learning_rate = 3e-4;
  double min_learning_rate = 0.0;
  Schedule schedule = Schedule::kCosine;
  int64_t warmup_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;       // 0: no clipping
  double decay_fraction = 0.2;  // of warmup_stable_decay: the share of steps over which the rate falls
};

struct CommunicationSpec {  // [communication]
  std::string plugin = "ofi";
  std::string provider = "auto";  // auto: shm inside a node, tcp between nodes; or "tcp", "shm", "efa"
  std::chrono::seconds timeout{300};
};

struct PrecompileSpec {              // [precompile]
  bool enabled = false;              // true where the section stands and does not say otherwise
  std::vector<std::string> command;  // argv that fills the cache, of a command program
  std::string cache;                 // folder that all nodes share; empty: ~/.cache/shardrun/compile
  int nodes = 0;                     // of the command's job; 0: those of the job
  int workers = 0;                   // compilers at once on each node; 0: one a CPU
  std::string architecture;          // of the GPUs to compile for, "sm_90"; empty: that of the rank's GPU
};

struct CheckpointSpec {     // [checkpoint]
  std::string directory;    // empty: <run dir>/checkpoints
  int64_t every_steps = 0;  // 0: only at the end and when stopped
  bool at_end = true;       // after the last step
  int keep = 2;
};

struct FaultToleranceSpec {  // [fault_tolerance]
  bool requeue = false;      // ask Slurm to start again when the time limit or preemption stops us
  std::chrono::seconds signal_lead{60};  // SIGTERM this long before the time limit
  std::chrono::seconds stop_grace{30};   // how long ranks have between SIGTERM and SIGKILL
  // Without any progress for so long, a rank hangs; 0: never. Absent: the trainer's steps decide, a command never hangs.
  std::optional<std::chrono::seconds> hang_timeout;
  int max_restarts = 0;                  // in one allocation, after a fault
  int spares = 0;                        // nodes to allocate beyond resources.nodes, for those that fail
  int min_nodes = 0;                     // fewest that the job goes on with; 0: resources.nodes
  std::chrono::seconds node_timeout{4};  // without a sign of life for so long, a node is lost
  std::optional<bool> preflight;  // look at all nodes before the first step; absent: when there are spares
};
// Whether the nodes are looked at before the first step.
bool wants_preflight(const FaultToleranceSpec& faults);
// The fewest nodes that a job on `nodes` nodes goes on with after a fault.
int fewest_nodes(const FaultToleranceSpec& faults, int nodes);

struct LoggingSpec {               // [logging]
  std::string directory = "runs";  // run directories are <directory>/<name>/<id>
  int64_t every_steps = 10;
  int64_t validate_every_steps = 0;  // 0: only at the end
  int64_t profile_steps = 0;         // trace this many steps, from the third on
};

// A value for one environment variable of the ranks: given here, or by reference so that no secret is
// written.
struct EnvironmentValue {
  enum class Kind { kLiteral, kFromVariable, kFromFile } kind = Kind::kLiteral;
  std::string text;  // the value, the variable's name, or the file's path
};

struct JobSpec {
  std::string name;
  ResourcesSpec resources;
  ClusterSpec cluster;
  ProgramSpec program;
  ContainerSpec container;  // [container]
  ModelSpec model;
  DataSpec data;
  BatchSpec batch;
  ShardingSpec sharding;
  PrecisionSpec precision;
  GpuSpec gpu;
  MemorySpec memory;
  OptimizerSpec optimizer;
  CommunicationSpec communication;
  PrecompileSpec precompile;
  CheckpointSpec checkpoint;
  FaultToleranceSpec fault_tolerance;
  LoggingSpec logging;
  std::map<std::string, EnvironmentValue> environment;  // [environment]

  // Where each given value stands, e.g. "data.files[0]" → "job.toml:7:3": for refusals that come later.
  std::map<std::string, std::string> origins;
  // Of a key that was not given: its section's place, else the document's.
  std::string origin(const std::string& key) const;
};

// Text → JobSpec. `file_name` only names the source in messages. `overrides` are "section.key=value" strings
// of --set, applied after the file; the value is read as TOML, or as a bare string where that fails.
// Errors: kInvalid, "file:line:column: what; mend" ("--set a.b=c: what; mend" for an override).
// Checks what the text alone can tell; launcher/submit/rules.h checks the rest against files and hosts.
Result<JobSpec> parse_job_spec(std::string_view text, std::string_view file_name,
                               std::span<const std::string> overrides = {});

// Whether a variable of this name holds a secret, by the end of the name: TOKENIZERS_PARALLELISM, MAX_TOKENS or
// HF_TOKEN_PATH do not.
bool looks_secret(std::string_view variable);

// Reads the file, at most 1 MiB, then parse_job_spec.
Result<JobSpec> load_job_spec(const std::string& path, std::span<const std::string> overrides = {});

}  // namespace shardrun::spec
