#include "runtime/spec/job_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/io.h"
#include "runtime/spec/architecture.h"
#include "runtime/spec/environment_rules.h"
#include "runtime/spec/fault_tolerance_rules.h"
#include "runtime/spec/gpu_rules.h"
#include "runtime/spec/key_places.h"
#include "runtime/spec/precompile_rules.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {
namespace {

using base::Code;
using base::Error;

constexpr int64_t kLargestMebibytes = int64_t{1} << 30;
constexpr uint64_t kLargestFileBytes = 1 << 20;
constexpr Word<DType> kTypes[] = {{name_of(DType::kFp32), DType::kFp32},
                                  {name_of(DType::kBf16), DType::kBf16}};
constexpr Word<Checkpointing> kLevels[] = {
    {"none", Checkpointing::kNone}, {"selective", Checkpointing::kSelective}, {"full", Checkpointing::kFull}};
constexpr Word<OptimizerKind> kOptimizers[] = {
    {"adamw", OptimizerKind::kAdamW}, {"adamw8bit", OptimizerKind::kAdamW8}, {"lamb", OptimizerKind::kLamb}};
constexpr const char* kSections[] = {
    "resources",       "cluster",   "program",     "container", "model",         "data",       "batch",
    "sharding",        "precision", "memory",      "optimizer", "communication", "precompile", "checkpoint",
    "fault_tolerance", "logging",   "environment", "gpu",       "slurm",         "evaluation", "lora",
    "export"};

void read_top(const TomlValue& document, SpecReading& reading, JobSpec& spec) {
  SectionReader top(document, "", reading);
  top.word("name", "._-", spec.name);
  for (const char* section : kSections) top.know(section);
  for (const TomlMember& member : document.members) {
    if (const std::string_view section = section_of_key(member.key); !section.empty())
      reading.fail(member.value.origin, fmt::format("{} is a key of [{}]", member.key, section),
                   fmt::format("write {}.{} = …", section, member.key));
  }
  top.finish();
  if (spec.name.empty()) {
    reading.fail(document.origin, "the job has no name", "write name = \"…\" at the top");
  } else if (spec.name.size() > 64 || spec.name.front() == '.') {
    reading.fail(top.origin("name"),
                 fmt::format("name = \"{}\" cannot be a folder's name", printable(spec.name)),
                 "use at most 64 characters and begin with a letter or a digit");
  }
}

void read_resources(const TomlValue& document, SpecReading& reading, ResourcesSpec& resources) {
  SectionReader section(document, "resources", reading);
  section.integer("nodes", 1, 65536, resources.nodes);
  section.integer("ranks_per_node", 1, 1024, resources.ranks_per_node);
  section.integer("cpus_per_rank", 1, 4096, resources.cpus_per_rank);
  section.duration("time_limit", 60, 366 * kDay, resources.time_limit);
  section.word("partition", "._-,", resources.partition);
  section.word("account", "._-", resources.account);
  section.word("constraint", "._-,&|*()[]", resources.constraint);
  section.word("exclude", "._-,[]", resources.exclude);
  section.boolean("exclusive", resources.exclusive);
  section.integer("gpus_per_node", 0, 1024, resources.gpus_per_node);
  constexpr Word<DeviceKind> kDevices[] = {{"cpu", DeviceKind::kCpu}, {"gpu", DeviceKind::kGpu}};
  section.choice("device", kDevices, resources.device);
  section.integer("ranks_per_gpu", 1, 64, resources.ranks_per_gpu);
  for (const TomlMember& member : section.members()) {
    if (is_slurm_key(member.key))
      reading.fail(member.value.origin, fmt::format("{} is Slurm's alone", member.key),
                   "write it under [slurm]");
  }
  section.finish();
}

void read_cluster(const TomlValue& document, SpecReading& reading, ClusterSpec& cluster) {
  constexpr Word<SchedulerKind> kKinds[] = {{"auto", SchedulerKind::kAuto},
                                            {"local", SchedulerKind::kLocal},
                                            {"slurm", SchedulerKind::kSlurm},
                                            {"mpirun", SchedulerKind::kMpirun}};
  SectionReader section(document, "cluster", reading);
  section.choice("scheduler", kKinds, cluster.scheduler);
  section.word("instance", ".-", cluster.instance);
  section.text("config", cluster.config);
  section.finish();
  if (section.has("instance") && section.has("config")) {
    reading.fail(section.origin("instance"), "[cluster] names an instance and a config", "keep one of them");
  }
}

void read_program(const TomlValue& document, SpecReading& reading, ProgramSpec& program) {
  SectionReader section(document, "program", reading);
  section.text("trainer", program.trainer, 64);
  section.texts("command", program.command);
  section.texts("setup", program.setup);
  constexpr Word<SnapshotKind> kSnapshots[] = {{"git", SnapshotKind::kGit},
                                               {"git+changes", SnapshotKind::kGitWithChanges}};
  section.choice("snapshot", kSnapshots, program.snapshot);
  section.finish();
  if (section.has("trainer") == section.has("command")) {
    reading.fail(
        section.origin(),
        section.has("trainer") ? "[program] has both trainer and command" : "the job has no program",
        "write exactly one: [program] trainer = \"llama\", or command = [\"program\", \"argument\"]");
  } else if (section.has("command") && (program.command.empty() || program.command.front().empty())) {
    reading.fail(section.origin("command"), "program.command names no program",
                 "write command = [\"program\", \"argument\"]");
  } else if (section.has("trainer") && find_architecture(program.trainer) == nullptr) {
    std::string names;
    for (const Architecture& one : kArchitectures)
      names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", one.name);
    reading.fail(section.origin("trainer"),
                 fmt::format("there is no trainer \"{}\"", printable(program.trainer)),
                 "write trainer = " + names);
  }
  if (!program.setup.empty() && section.has("trainer")) {
    reading.fail(section.origin("setup"), "the built-in trainer needs no setup", "remove the key");
  } else if (!program.setup.empty() && document.find("container") != nullptr) {
    reading.fail(section.origin("setup"), "setup prepares the node, and the program runs in an image",
                 "put it into the image, or remove [container]");
  }
}

// Refuses sections that a command program would never see: they must not look as if they did something.
void refuse_trainer_sections(const TomlValue& document, SpecReading& reading) {
  for (const char* name : {"model", "data", "sharding", "precision", "gpu", "memory", "optimizer",
                           "communication", "checkpoint", "evaluation", "lora", "export"}) {
    if (const TomlValue* section = document.find(name)) {
      reading.fail(section->origin, fmt::format("[{}] has no effect on a command program", name),
                   "remove the section, or run the built-in trainer with [program] trainer = \"llama\"");
    }
  }
}

void read_data(const TomlValue& document, SpecReading& reading, DataSpec& data) {
  SectionReader section(document, "data", reading);
  section.texts("files", data.files);
  section.texts("validation", data.validation);
  section.text("tokenizer", data.tokenizer, 64);
  section.integer("sequence_length", 1, 1 << 20, data.sequence_length);
  section.integer("seed", 0, INT64_MAX, data.seed);
  section.integer("validation_sequences", 1, 1 << 24, data.validation_sequences);
  section.finish();
  if (data.tokenizer != "byte") {
    reading.fail(section.origin("tokenizer"),
                 fmt::format("there is no tokenizer \"{}\"", printable(data.tokenizer)),
                 "write tokenizer = \"byte\"");
  }
  if (data.files.empty()) {
    reading.fail(section.origin(), "the trainer has no text",
                 "write [data] files = [\"path of a text file\"]");
  }
  for (const auto* list : {&data.files, &data.validation}) {
    for (size_t i = 0; i < list->size(); ++i) {
      if (!(*list)[i].empty()) continue;
      reading.fail(section.origin(list == &data.files ? "files" : "validation"), "a file's name is empty",
                   "write the path of a text file");
    }
  }
}

void read_batch(const TomlValue& document, SpecReading& reading, BatchSpec& batch) {
  constexpr Word<Scaling> kScalings[] = {{"strong", Scaling::kStrong}, {"weak", Scaling::kWeak}};
  constexpr Word<Uneven> kUnevens[] = {{"refuse", Uneven::kRefuse}, {"distribute", Uneven::kDistribute}};
  SectionReader section(document, "batch", reading);
  section.integer("global_batch", 1, kLargestCount, batch.global_batch);
  section.integer("gradient_accumulation", 1, kLargestCount, batch.gradient_accumulation);
  section.integer("micro_batch", 1, 1 << 20, batch.micro_batch);
  if (!section.has("scaling") && !batch.global_batch) batch.scaling = Scaling::kWeak;
  section.choice("scaling", kScalings, batch.scaling);
  section.choice("uneven", kUnevens, batch.uneven);
  section.finish();
  if (reading.error) return;
  if (batch.global_batch && batch.gradient_accumulation) {
    reading.fail(section.origin("gradient_accumulation"),
                 "[batch] has both global_batch and gradient_accumulation",
                 "keep one: the other follows from micro_batch and the number of ranks");
  } else if (batch.scaling == Scaling::kStrong && !batch.global_batch) {
    reading.fail(section.origin("scaling"), "strong scaling keeps global_batch, and [batch] has none",
                 "write global_batch = …, or scaling = \"weak\"");
  } else if (batch.scaling == Scaling::kWeak && batch.global_batch) {
    reading.fail(section.origin("scaling"),
                 "weak scaling keeps gradient_accumulation and lets global_batch grow",
                 "write gradient_accumulation in the place of global_batch, or scaling = \"strong\"");
  } else if (batch.scaling == Scaling::kWeak && batch.uneven == Uneven::kDistribute) {
    reading.fail(section.origin("uneven"), "a batch of weak scaling is never uneven",
                 "remove the key, or write global_batch in the place of gradient_accumulation");
  } else if (!batch.global_batch && !batch.gradient_accumulation) {
    batch.gradient_accumulation = 1;
  }
}

// Bounds the micro-batch: everything the trainer holds of one is a multiple of its tokens.
void check_micro_batch(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  constexpr int64_t kMostTokens = 1 << 24;
  const int64_t tokens = int64_t{spec.batch.micro_batch} * spec.data.sequence_length;
  if (tokens <= kMostTokens) return;
  SectionReader batch(document, "batch", reading);
  reading.fail(
      batch.has("micro_batch") ? batch.origin("micro_batch") : batch.origin(),
      fmt::format("micro_batch {} × sequence_length {} are {} tokens at once on each rank",
                  spec.batch.micro_batch, spec.data.sequence_length, tokens),
      fmt::format("keep the product at or below {}; gradient_accumulation makes batches large", kMostTokens));
}

void read_sharding(const TomlValue& document, SpecReading& reading, ShardingSpec& sharding) {
  Word<Strategy> strategies[kStrategies.size()];
  std::transform(kStrategies.begin(), kStrategies.end(), strategies, [](const StrategyRules& rules) {
    return Word<Strategy>{rules.name, rules.strategy};
  });
  SectionReader section(document, "sharding", reading);
  section.choice("strategy", strategies, sharding.strategy);
  section.integer("shard_degree", 1, 1 << 17, sharding.shard_degree);
  section.integer("tensor_parallel", 1, 1 << 10, sharding.tensor_parallel);
  section.integer("expert_parallel", 1, 1 << 10, sharding.expert_parallel);
  section.integer("context_parallel", 1, 1 << 10, sharding.context_parallel);
  section.integer("pipeline_parallel", 1, 1 << 10, sharding.pipeline_parallel);
  section.integer("virtual_stages", 1, 1 << 10, sharding.virtual_stages);
  section.integer("wrap", 1, 1 << 12, sharding.wrap);
  section.integer("prefetch", 0, 64, sharding.prefetch);
  section.finish();
  if (section.has("shard_degree") && rules_of(sharding.strategy).degree != ShardDegree::kAsked) {
    reading.fail(section.origin("shard_degree"), "only hybrid_shard has a shard_degree",
                 "write strategy = \"hybrid_shard\", or remove it");
  }
}

void read_memory(const TomlValue& document, SpecReading& reading, MemorySpec& memory) {
  SectionReader section(document, "memory", reading);
  section.choice("activation_checkpointing", kLevels, memory.activation_checkpointing);
  section.boolean("activation_offload", memory.activation_offload);
  section.boolean("optimizer_offload", memory.optimizer_offload);
  section.text("directory", memory.directory);
  section.finish();
}

void read_precision(const TomlValue& document, SpecReading& reading, PrecisionSpec& precision) {
  SectionReader section(document, "precision", reading);
  section.choice("parameters", kTypes, precision.parameters);
  section.choice("reduce", kTypes, precision.reduce);
  section.boolean("fp8", precision.fp8);
  section.finish();
}

void read_gpu(const TomlValue& document, SpecReading& reading, GpuSpec& gpu) {
  SectionReader section(document, "gpu", reading);
  constexpr Word<GpuAttention> kAttentions[] = {
      {"auto", GpuAttention::kAuto}, {"cudnn", GpuAttention::kCudnn}, {"own", GpuAttention::kOwn}};
  section.choice("attention", kAttentions, gpu.attention);
  section.boolean("tune_products", gpu.tune_products);
  section.boolean("graphs", gpu.graphs);
  section.finish();
}

void read_optimizer(const TomlValue& document, SpecReading& reading, OptimizerSpec& optimizer) {
  constexpr Word<Schedule> kSchedules[] = {{"constant", Schedule::kConstant},
                                           {"linear", Schedule::kLinear},
                                           {"cosine", Schedule::kCosine},
                                           {"warmup_stable_decay", Schedule::kWarmupStableDecay}};
  SectionReader section(document, "optimizer", reading);
  section.choice("kind", kOptimizers, optimizer.kind);
  section.integer("steps", 1, kLargestCount, optimizer.steps);
  section.number("learning_rate", 0.0, 1e3, optimizer.learning_rate);
  section.number("min_learning_rate", 0.0, 1e3, optimizer.min_learning_rate);
  section.choice("schedule", kSchedules, optimizer.schedule);
  section.integer("warmup_steps", 0, kLargestCount, optimizer.warmup_steps);
  section.number("beta1", 0.0, 0.999999, optimizer.beta1);
  section.number("beta2", 0.0, 0.999999999, optimizer.beta2);
  section.number("epsilon", 1e-30, 1.0, optimizer.epsilon);
  section.number("weight_decay", 0.0, 100.0, optimizer.weight_decay);
  section.number("clip_norm", 0.0, 1e9, optimizer.clip_norm);
  section.number("decay_fraction", 0.0, 1.0, optimizer.decay_fraction);
  section.finish();
  if (optimizer.min_learning_rate > optimizer.learning_rate) {
    reading.fail(section.origin("min_learning_rate"), "min_learning_rate is above learning_rate",
                 "make it smaller, or raise learning_rate");
  }
  if (optimizer.warmup_steps > optimizer.steps) {
    reading.fail(
        section.origin("warmup_steps"),
        fmt::format("{} warm-up steps do not fit in {} steps", optimizer.warmup_steps, optimizer.steps),
        "warm up for fewer steps than the job has");
  }
}

void read_communication(const TomlValue& document, SpecReading& reading, CommunicationSpec& communication) {
  SectionReader section(document, "communication", reading);
  section.word("plugin", "_", communication.plugin);
  section.word("provider", "_-;", communication.provider);
  section.duration("timeout", 1, 7 * kDay, communication.timeout);
  section.boolean("checksums", communication.checksums);
  section.finish();
}

void read_checkpoint(const TomlValue& document, SpecReading& reading, CheckpointSpec& checkpoint) {
  SectionReader section(document, "checkpoint", reading);
  section.text("directory", checkpoint.directory);
  section.integer("every_steps", 0, kLargestCount, checkpoint.every_steps);
  section.boolean("at_end", checkpoint.at_end);
  section.integer("keep", 1, 1000, checkpoint.keep);
  section.finish();
}

void read_export(const TomlValue& document, SpecReading& reading, const JobSpec& spec, ExportSpec& exported) {
  SectionReader section(document, "export", reading);
  section.text("directory", exported.directory);
  section.choice("dtype", kTypes, exported.dtype);
  section.boolean("adapter", exported.adapter);
  section.boolean("gguf", exported.gguf);
  section.word("push", "/._-", exported.push);
  section.finish();
  if (section.present() && exported.directory.empty()) {
    reading.fail(section.origin(), "[export] has no directory", "write directory = a folder to make");
  } else if (exported.adapter && !spec.lora.wanted()) {
    reading.fail(section.origin("adapter"), "only a job with [lora] has an adapter", "remove the key");
  } else if (exported.adapter && exported.gguf) {
    reading.fail(section.origin("gguf"), "a GGUF holds a whole model", "remove the key, or adapter");
  } else if (!exported.push.empty() && exported.push.find('/') == std::string::npos) {
    reading.fail(section.origin("push"), fmt::format("push = \"{}\" names no repository", exported.push),
                 "write it as user/model");
  } else if (section.present() && !spec.checkpoint.at_end) {
    reading.fail(section.origin(),
                 "an export is made of the last checkpoint, and [checkpoint] at_end = false",
                 "remove that key, or [export]");
  }
}

void read_logging(const TomlValue& document, SpecReading& reading, LoggingSpec& logging) {
  SectionReader section(document, "logging", reading);
  section.text("directory", logging.directory);
  section.integer("every_steps", 1, kLargestCount, logging.every_steps);
  section.integer("validate_every_steps", 0, kLargestCount, logging.validate_every_steps);
  section.integer("profile_steps", 0, 1000, logging.profile_steps);
  section.boolean("tensorboard", logging.tensorboard);
  section.integer("rank_limit_mib", 1, kLargestMebibytes, logging.rank_limit_mib);
  section.integer("run_limit_mib", 1, kLargestMebibytes, logging.run_limit_mib);
  section.finish();
}

void check_context(const SectionReader& sharding, SpecReading& reading, const JobSpec& spec) {
  const int ranks = spec.sharding.context_parallel;
  if (ranks == 1) return;
  const auto origin = sharding.origin("context_parallel");
  if (!architecture_of(spec.program.trainer).causal) {
    reading.fail(origin, "only a causal model's sequences are shared by ranks", "remove it");
  } else if (spec.model.experts.wanted()) {
    reading.fail(origin, "experts take whole sequences",
                 "remove it: expert_parallel spreads them over ranks");
  } else if (spec.resources.device == DeviceKind::kGpu) {
    reading.fail(origin, "ranks on GPUs do not share sequences yet", "remove it, or write device = \"cpu\"");
  } else if (spec.data.sequence_length % (2 * ranks) != 0) {
    reading.fail(
        origin,
        fmt::format("{} ranks cannot share sequences of {} tokens: each has two pieces of one length", ranks,
                    spec.data.sequence_length),
        fmt::format("make sequence_length a multiple of {}", 2 * ranks));
  }
}

void check_pipeline(const SectionReader& sharding, SpecReading& reading, const JobSpec& spec) {
  const int stages = spec.sharding.pipeline_parallel, chunks = spec.sharding.virtual_stages;
  const auto virtual_origin = sharding.origin("virtual_stages");
  if (stages == 1 && chunks > 1)
    reading.fail(virtual_origin, "one stage has nothing to wait for, and so nothing to interleave",
                 "write pipeline_parallel, too, or remove it");
  if (stages == 1) return;
  const Architecture& architecture = architecture_of(spec.program.trainer);
  const auto origin = sharding.origin("pipeline_parallel");
  if (!architecture.sliceable) {
    reading.fail(origin, fmt::format("{} has no pipeline", architecture.called),
                 "remove it, and use shard_degree");
  } else if (spec.model.experts.wanted()) {
    reading.fail(origin, "a model with experts is not cut into stages yet",
                 "remove it: expert_parallel spreads experts over ranks");
  } else if (spec.lora.wanted()) {
    reading.fail(origin, "adapters are not cut into stages yet",
                 "remove it: strategies cut the weights that they stand beside");
  } else if (spec.resources.device == DeviceKind::kGpu) {
    reading.fail(origin, "ranks on GPUs are no stages of a pipeline yet",
                 "remove it, or write device = \"cpu\"");
  } else if (stages > spec.model.layers) {
    reading.fail(origin, fmt::format("{} stages cannot have a layer each of {}", stages, spec.model.layers),
                 "write at most as many stages as the model has layers");
  } else if (int64_t{stages} * chunks > spec.model.layers) {
    reading.fail(virtual_origin,
                 fmt::format("{} layers are too few for {} chunks on each of {} stages", spec.model.layers,
                             chunks, stages),
                 fmt::format("write at most {}", spec.model.layers / stages));
  } else if (spec.model.tied_embeddings && spec.optimizer.kind == OptimizerKind::kLamb) {
    reading.fail(origin, "lamb counts an embedding twice that is tied between stages",
                 "remove it, or write kind = \"adamw\"");
  }
}

// Refuses settings that are each possible but not together.
void check_together(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (reading.error) return;
  SectionReader sharding(document, "sharding", reading), memory(document, "memory", reading),
      optimizer(document, "optimizer", reading), data(document, "data", reading);
  const Architecture& architecture = architecture_of(spec.program.trainer);
  const bool whole = !architecture.sliceable, lamb = spec.optimizer.kind == OptimizerKind::kLamb;
  if (spec.sharding.tensor_parallel > 1 && (whole || lamb)) {
    reading.fail(sharding.origin("tensor_parallel"),
                 fmt::format("{} has no tensor parallelism", whole ? architecture.called : "lamb"),
                 whole ? "remove it, and use shard_degree" : "remove it, or write kind = \"adamw\"");
  }
  if (spec.sharding.tensor_parallel > 1 && spec.model.experts.wanted()) {
    reading.fail(sharding.origin("tensor_parallel"), "experts are not cut for a tensor group",
                 "remove it: [sharding] expert_parallel spreads them over ranks");
  }
  if (const int ranks = spec.sharding.expert_parallel; ranks > 1) {
    const int experts = spec.model.experts.count;
    if (experts == 0) {
      reading.fail(sharding.origin("expert_parallel"), "the model has no experts", "remove it");
    } else if (experts % ranks != 0) {
      reading.fail(sharding.origin("expert_parallel"),
                   fmt::format("{} ranks cannot share {} experts evenly", ranks, experts),
                   "write a divisor of the experts");
    }
  }
  if (spec.sharding.wrap > 1 && spec.model.experts.wanted())
    reading.fail(sharding.origin("wrap"),
                 "a layer with experts is large, and two blocks that are gathered in turn", "remove it");
  check_context(sharding, reading, spec);
  check_pipeline(sharding, reading, spec);
  if (lamb && spec.memory.optimizer_offload) {
    reading.fail(memory.origin("optimizer_offload"),
                 "lamb reads its moments twice in a step, too often to offload them",
                 "remove it, or write kind = \"adamw\"");
  }
  if (spec.optimizer.kind == OptimizerKind::kAdamW8 && spec.memory.optimizer_offload) {
    reading.fail(memory.origin("optimizer_offload"),
                 "moments of adamw8bit stay in memory, of which they take a quarter",
                 "remove it, or write kind = \"adamw\"");
  }
  if (!architecture.causal && spec.data.sequence_length > spec.model.max_positions) {
    reading.fail(data.origin("sequence_length"),
                 fmt::format("sequence_length {} is above the model's max_positions {}",
                             spec.data.sequence_length, spec.model.max_positions),
                 "shorten it, or raise [model] max_positions");
  }
}

JobSpec read_all(const TomlValue& document, SpecReading& reading) {
  JobSpec spec;
  read_top(document, reading, spec);
  read_resources(document, reading, spec.resources);
  read_slurm(document, reading, spec.slurm);
  read_cluster(document, reading, spec.cluster);
  read_program(document, reading, spec.program);
  read_container(document, !spec.program.command.empty(), reading, spec.container);
  if (!spec.program.command.empty()) {
    refuse_trainer_sections(document, reading);
  } else {
    read_model(document, reading, spec.program.trainer, spec.model);
    read_data(document, reading, spec.data);
    read_evaluation(document, reading, spec.evaluation);
    read_sharding(document, reading, spec.sharding);
    read_precision(document, reading, spec.precision);
    read_gpu(document, reading, spec.gpu);
    read_memory(document, reading, spec.memory);
    read_optimizer(document, reading, spec.optimizer);
    read_communication(document, reading, spec.communication);
    read_checkpoint(document, reading, spec.checkpoint);
    read_lora(document, reading, spec);
    read_export(document, reading, spec, spec.exported);
  }
  read_batch(document, reading, spec.batch);
  if (spec.program.command.empty()) {
    check_micro_batch(document, reading, spec);
    check_together(document, reading, spec);
  }
  read_precompile(document, reading, spec);
  check_gpu_training(document, reading, spec);
  read_fault_tolerance(document, reading, spec.resources, spec.fault_tolerance);
  read_logging(document, reading, spec.logging);
  check_evaluation(document, reading, spec);
  read_environment(document, reading, spec.environment);
  return spec;
}

}  // namespace

bool wants_preflight(const FaultToleranceSpec& faults) {
  return faults.preflight.value_or(faults.spares > 0);
}

int fewest_nodes(const FaultToleranceSpec& faults, int nodes) {
  return faults.min_nodes == 0 ? nodes : std::min(faults.min_nodes, nodes);
}

bool JobSpec::has_batch() const {
  return program.command.empty() || batch.global_batch || batch.gradient_accumulation.value_or(1) != 1 ||
         origins.contains("batch");
}

std::string JobSpec::origin(const std::string& key) const {
  return origin_of(origins, key);
}

namespace {

// Reads the text and keeps in `reading` what is wrong with it. The error is that of a text that is no TOML.
Result<JobSpec> read_job_spec(std::string_view text, std::string_view file_name,
                              std::span<const std::string> overrides, SpecReading& reading) {
  if (text.size() > kLargestFileBytes) {
    return Error(Code::kInvalid, fmt::format("{}:1:1: the job spec has {} bytes; write at most {}",
                                             printable_path(file_name), text.size(), kLargestFileBytes));
  }
  Result<TomlValue> document = parse_toml(text, file_name);
  RETURN_IF_ERROR(document);
  for (const std::string& assignment : overrides) RETURN_IF_ERROR(apply_override(*document, assignment));
  reading.origins[""] = document->origin;
  for (const TomlMember& member : document->members) reading.origins[member.key] = member.value.origin;
  return read_all(*document, reading);
}

}  // namespace

const char* name_of(OptimizerKind kind) {
  return kOptimizers[static_cast<int>(kind)].name;
}

const char* name_of(Checkpointing level) {
  return kLevels[static_cast<int>(level)].name;
}

Result<JobSpec> parse_job_spec(std::string_view text, std::string_view file_name,
                               std::span<const std::string> overrides) {
  SpecReading reading;
  auto spec = read_job_spec(text, file_name, overrides, reading);
  RETURN_IF_ERROR(spec);
  if (reading.error) return *reading.error;
  spec->origins = std::move(reading.origins);
  return spec;
}

std::vector<Error> mistakes_in_job_spec(std::string_view text, std::string_view file_name,
                                        std::span<const std::string> overrides) {
  SpecReading reading;
  const auto spec = read_job_spec(text, file_name, overrides, reading);
  if (!spec) return {spec.error()};
  std::vector<Error> mistakes;
  if (reading.error) mistakes.push_back(*reading.error);
  for (Error& one : reading.further) mistakes.push_back(std::move(one));
  return mistakes;
}

Result<std::string> read_job_text(const std::string& path) {
  Result<std::string> text = base::read_file(path, kLargestFileBytes);
  if (text) return text;
  return Error(Code::kInvalid,
               fmt::format("{}:1:1: {}; name a readable job spec of at most {} bytes", printable_path(path),
                           text.error().to_string(), kLargestFileBytes));
}

Result<JobSpec> load_job_spec(const std::string& path, std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(const auto text, read_job_text(path));
  return parse_job_spec(text, path, overrides);
}

}  // namespace shardrun::spec
