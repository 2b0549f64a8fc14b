// JobSpec: what a job.toml asks for, checked. It is the one description of a job that every part of shardrun reads.
//
// parse_job_spec turns text into this struct or into an Error, "file:line:column: what is wrong; what to do".
// Unknown keys, wrong types and impossible values are refused; nothing is guessed. Every field below carries
// the default that applies when the key is absent. The grammar with an example is docs/job-spec.md.
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
#include "runtime/spec/evaluation_spec.h"
#include "runtime/spec/lora_spec.h"
#include "runtime/spec/model_spec.h"
#include "runtime/spec/slurm_spec.h"
#include "runtime/spec/strategy.h"

namespace shardrun::spec {

using base::DeviceKind;
using base::DType;
using base::Result;

enum class SchedulerKind { kAuto, kLocal, kSlurm, kMpirun };
enum class SnapshotKind { kNone, kGit, kGitWithChanges };
enum class Scaling { kStrong, kWeak };
enum class Uneven { kRefuse, kDistribute };
enum class Schedule { kConstant, kLinear, kCosine, kWarmupStableDecay };
enum class OptimizerKind { kAdamW, kAdamW8, kLamb };
enum class Checkpointing { kNone, kSelective, kFull };
enum class GpuAttention { kAuto, kCudnn, kOwn };
const char* name_of(OptimizerKind kind);
const char* name_of(Checkpointing level);

struct ResourcesSpec {  // [resources]
  int nodes = 1;
  int ranks_per_node = 1;
  int cpus_per_rank = 1;
  std::optional<std::chrono::seconds> time_limit;  // "HH:MM:SS", "MM:SS" or "D-HH:MM:SS", as Slurm writes it
  std::string partition, account, constraint, exclude;
  bool exclusive = false;
  int gpus_per_node = 0;                 // requested from Slurm, and looked for by the preflight
  DeviceKind device = DeviceKind::kCpu;  // what the built-in trainer computes with
  int ranks_per_gpu = 1;                 // ranks that share one GPU
};

struct ClusterSpec {                               // [cluster]
  SchedulerKind scheduler = SchedulerKind::kAuto;  // auto: slurm inside an allocation, else local
  std::string instance;  // a type of cluster-configs/instances.toml, which decides ranks_per_node; or empty
  std::string config;    // a cluster's TOML (launcher/cluster/spec.h), whose queue names the type; or empty
};

struct ProgramSpec {                            // [program]: exactly one of the two is given
  std::string trainer;                          // a name of kArchitectures (architecture.h)
  std::vector<std::string> command;             // argv, never re-parsed by a shell
  std::vector<std::string> setup;               // lines of bash that each rank runs before the command
  SnapshotKind snapshot = SnapshotKind::kNone;  // whether each run has a copy of the code as it was submitted
};

struct DataSpec {                       // [data]
  std::vector<std::string> files;       // plain text, or token files that `shardrun data` made
  std::vector<std::string> validation;  // the same, never trained on
  std::string tokenizer = "byte";       // for plain text: 256 tokens, one for each byte
  int sequence_length = 256;
  uint64_t seed = 1;              // for the weights' initial values and for the order of sequences
  int validation_sequences = 64;  // how many sequences of `validation` an evaluation reads at most
};

struct BatchSpec {  // [batch], counted in sequences
  std::optional<int64_t> global_batch;
  std::optional<int64_t> gradient_accumulation;
  int micro_batch = 1;
  Scaling scaling = Scaling::kStrong;
  // What happens to a global_batch that does not divide: it is refused, or spread exactly.
  Uneven uneven = Uneven::kRefuse;
};

struct ShardingSpec {  // [sharding]
  Strategy strategy = Strategy::kFullShard;
  // For hybrid_shard: ranks that share one copy of the model's state; 0: those of a node.
  int shard_degree = 0;
  int tensor_parallel = 1;   // ranks that share each matrix
  int expert_parallel = 1;   // ranks that share the experts of each layer
  int context_parallel = 1;  // ranks that share each sequence: some tokens each, keys and values of all
  int pipeline_parallel = 1, virtual_stages = 1;  // stages, and chunks of neighbouring layers that each has
  int wrap = 1;      // how many layers are gathered, and their gradients reduced, together
  int prefetch = 1;  // how many such units are gathered ahead
};

struct PrecisionSpec {  // [precision]
  // Type of gathered parameters and activations; master weights are fp32.
  DType parameters = DType::kBf16;
  DType reduce = DType::kFp32;  // type of gradients on their way between ranks, and of their sums there
  bool fp8 = false;             // whether the linear layers of a Llama's blocks compute in fp8, on GPUs
};

struct GpuSpec {                                 // [gpu]: how the trainer uses GPUs
  GpuAttention attention = GpuAttention::kAuto;  // whose attention kernels run
  bool tune_products = true;                     // whether kernels of products that no table knows are timed
  bool graphs = true;                            // whether a layer's ops are started as one CUDA graph
};

struct MemorySpec {  // [memory]: what to trade for less memory
  Checkpointing activation_checkpointing = Checkpointing::kNone;
  bool activation_offload = false;  // whether activations that wait for backward lie in a file
  bool optimizer_offload = false;   // whether the optimizer's moments lie in a file
  std::string directory;            // where those files lie, one for each rank; empty: the run directory
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
  double decay_fraction = 0.2;  // for warmup_stable_decay: the share of steps over which the rate falls
};

struct CommunicationSpec {  // [communication]
  std::string plugin = "ofi";
  std::string provider = "auto";  // auto: shm inside a node, tcp between nodes; or "tcp", "shm", "efa"
  std::chrono::seconds timeout{300};
  bool checksums = false;  // whether what collectives bring is checked
};

struct PrecompileSpec {              // [precompile], for a command program
  bool enabled = false;              // true where the section stands and does not say otherwise
  std::vector<std::string> command;  // argv that fills the cache
  std::string cache;                 // a folder that all nodes share; empty: ~/.cache/shardrun/compile
  int nodes = 0;                     // nodes of the command's job; 0: as many as the job's
  int workers = 0;                   // compilers that run at once on each node; 0: one for each CPU
};

struct CheckpointSpec {     // [checkpoint]
  std::string directory;    // empty: <run dir>/checkpoints
  int64_t every_steps = 0;  // 0: only at the end and when stopped
  bool at_end = true;       // whether one is written after the last step
  int keep = 2;
};

struct ExportSpec {            // [export]: the model as others load it, when the last step is done
  std::string directory;       // a folder that is not there yet; empty: no export
  DType dtype = DType::kBf16;  // of its tensors
  bool adapter = false;        // of a job with [lora]: the adapter alone, as PEFT has it
  bool gguf = false;           // one file for llama.cpp in the place of safetensors
  std::string push;            // a repository of a model hub, "user/model"; empty: none
};

struct FaultToleranceSpec {  // [fault_tolerance]
  // Whether Slurm is asked to start us again when the time limit or preemption stops us.
  bool requeue = false;
  std::chrono::seconds signal_lead{60};  // SIGTERM comes this long before the time limit
  std::chrono::seconds stop_grace{30};   // how long ranks have between SIGTERM and SIGKILL
  // A rank that makes no progress for so long hangs; 0: never. Absent: the trainer's steps decide, and a
  // command never hangs.
  std::optional<std::chrono::seconds> hang_timeout;
  int max_restarts = 0;                  // restarts within one allocation, after a fault
  int spares = 0;                        // nodes to allocate beyond resources.nodes, for those that fail
  int min_nodes = 0;                     // the fewest nodes that the job goes on with; 0: resources.nodes
  std::chrono::seconds node_timeout{4};  // a node that gives no sign of life for so long is lost
  // How long ranks whose conductor has died go on, for another to take them over (shardrun run --attach); 0: they end with it.
  std::chrono::seconds conductor_timeout{0};
  // Whether all nodes are looked at before the first step; absent: when there are spares.
  std::optional<bool> preflight;
  double spike_factor =
      0.0;  // a loss above so many times the median of those before it ends the job; 0: none does
  int64_t compare_every_steps = 100;  // how often replicas compare their weights; 0: never
};
// Says whether the nodes are looked at before the first step.
bool wants_preflight(const FaultToleranceSpec& faults);
// Returns the fewest nodes that a job on `nodes` nodes goes on with after a fault.
int fewest_nodes(const FaultToleranceSpec& faults, int nodes);

struct LoggingSpec {               // [logging]
  std::string directory = "runs";  // run directories are <directory>/<name>/<id>
  int64_t every_steps = 10;
  int64_t validate_every_steps = 0;  // 0: only at the end
  int64_t profile_steps = 0;         // how many steps are traced, from the third on
  bool tensorboard = false;          // event files in the run directory
  int64_t rank_limit_mib = 512;      // of a rank's output in an attempt
  int64_t run_limit_mib = 65536;     // of the output of all ranks and attempts
};

// The value of one environment variable of the ranks: given here, or by reference so that no secret is written.
struct EnvironmentValue {
  enum class Kind { kLiteral, kFromVariable, kFromFile } kind = Kind::kLiteral;
  std::string text;  // the value, the variable's name, or the file's path
};

struct JobSpec {
  std::string name;
  ResourcesSpec resources;
  SlurmSpec slurm;  // [slurm]
  ClusterSpec cluster;
  ProgramSpec program;
  ContainerSpec container;  // [container]
  ModelSpec model;
  LoraSpec lora;  // [lora]
  DataSpec data;
  EvaluationSpec evaluation;  // [evaluation]
  BatchSpec batch;
  ShardingSpec sharding;
  PrecisionSpec precision;
  GpuSpec gpu;
  MemorySpec memory;
  OptimizerSpec optimizer;
  CommunicationSpec communication;
  PrecompileSpec precompile;
  CheckpointSpec checkpoint;
  ExportSpec exported;  // [export]
  FaultToleranceSpec fault_tolerance;
  LoggingSpec logging;
  std::map<std::string, EnvironmentValue> environment;  // [environment]
  // Where each given value stands, e.g. "data.files[0]" → "job.toml:7:3", for refusals that come later.
  std::map<std::string, std::string> origins;
  // Says whether the job counts sequences: a command program without [batch] does not, and any number of ranks suits it.
  bool has_batch() const;
  // Returns the place of a key; for one that was not given, its section's place, else the document's.
  std::string origin(const std::string& key) const;
};

// Reads text into a JobSpec. `file_name` only names the source in messages. `overrides` are the "section.key=value" strings of --set,
// applied after the file; each value is read as TOML, or as a bare string where that fails. Errors: kInvalid, "file:line:column: what;
// mend" ("--set a.b=c: what; mend" for an override). What needs files and hosts is checked by launcher/submit/rules.h.
Result<JobSpec> parse_job_spec(std::string_view text, std::string_view file_name,
                               std::span<const std::string> overrides = {});

// Returns all that is wrong with the keys, the error of parse_job_spec first; those that may follow from another are left out.
std::vector<base::Error> mistakes_in_job_spec(std::string_view text, std::string_view file_name,
                                              std::span<const std::string> overrides = {});

// Reads the file, at most 1 MiB: once, for it may be a pipe. load_job_spec() parses it as parse_job_spec() does.
Result<std::string> read_job_text(const std::string& path);
Result<JobSpec> load_job_spec(const std::string& path, std::span<const std::string> overrides = {});

}  // namespace shardrun::spec
