#include "runtime/trainer/train/spec_options.h"

#include <cmath>

namespace shardrun::train {
namespace {

optim::Shape shape_of(spec::Schedule schedule) {
  switch (schedule) {
    case spec::Schedule::kConstant:
      return optim::Shape::kConstant;
    case spec::Schedule::kLinear:
      return optim::Shape::kLinear;
    case spec::Schedule::kWarmupStableDecay:
      return optim::Shape::kWsd;
    case spec::Schedule::kCosine:
      return optim::Shape::kCosine;
  }
  return optim::Shape::kCosine;
}

model::Checkpointing checkpointing_of(spec::Checkpointing level) {
  switch (level) {
    case spec::Checkpointing::kNone:
      return model::Checkpointing::kNone;
    case spec::Checkpointing::kSelective:
      return model::Checkpointing::kSelective;
    case spec::Checkpointing::kFull:
      return model::Checkpointing::kFull;
  }
  return model::Checkpointing::kNone;
}

}  // namespace

Network network_of(const spec::JobSpec& spec) {
  const spec::ModelSpec& model = spec.model;
  if (spec.program.trainer == "bert") {
    return model::BertConfig{.layers = model.layers,
                             .hidden = model.hidden,
                             .heads = model.heads,
                             .ffn = model.ffn,
                             .vocab = model.vocab,
                             .max_positions = model.max_positions};
  }
  return model::LlamaConfig{model.layers,     model.hidden,       model.heads,
                            model.kv_heads,   model.ffn,          model.vocab,
                            model.rope_theta, model.norm_epsilon, model.tied_embeddings};
}

kernels::DType compute_type(const spec::JobSpec& spec) {
  return spec.precision.parameters == spec::Precision::kBf16 ? kernels::DType::kBf16 : kernels::DType::kFp32;
}

std::string absolute_path(const std::string& path, const record::LaunchPlan& plan) {
  return path.empty() || path.front() == '/' ? path : plan.working_directory + "/" + path;
}

SessionOptions session_options(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  SessionOptions options;
  options.model = network_of(spec);
  if (spec.model.init != "random") options.initial_weights = absolute_path(spec.model.init, plan);
  options.compute = compute_type(spec);
  options.fp8 = spec.precision.fp8;
  options.attention = spec.gpu.attention;
  if (spec.resources.device == spec::TrainingDevice::kGpu) options.device = kernels::DeviceKind::kGpu;
  options.prefetch = spec.sharding.prefetch;
  options.keeps_parameters = spec::rules_of(spec.sharding.strategy).keeps_parameters;
  options.sequence_length = spec.data.sequence_length;
  options.micro_batch = plan.batch.micro_batch;
  options.gradient_accumulation = plan.batch.gradient_accumulation;
  options.global_batch = plan.batch.global_batch;
  options.seed = spec.data.seed;
  for (const std::string& file : spec.data.files) options.training_files.push_back(absolute_path(file, plan));
  for (const std::string& file : spec.data.validation)
    options.validation_files.push_back(absolute_path(file, plan));
  options.validation_sequences = spec.data.validation_sequences;
  const spec::OptimizerSpec& optimizer = spec.optimizer;
  if (optimizer.kind == spec::OptimizerKind::kLamb) {
    options.optimizer.kind =
        optim::LambOptions{optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay};
  } else {
    options.optimizer.kind =
        optim::AdamWOptions{optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay};
  }
  if (options.device == kernels::DeviceKind::kGpu) {
    options.optimizer.offload_to_host = spec.memory.optimizer_offload;
    options.activation_offload_to_host = spec.memory.activation_offload;
  } else {
    const std::string offload =
        spec.memory.directory.empty() ? plan.run_directory : absolute_path(spec.memory.directory, plan);
    if (spec.memory.optimizer_offload) options.optimizer.offload_directory = offload;
    if (spec.memory.activation_offload) options.activation_offload_directory = offload;
  }
  options.checkpointing = checkpointing_of(spec.memory.activation_checkpointing);
  options.schedule = {shape_of(optimizer.schedule),
                      optimizer.learning_rate,
                      optimizer.min_learning_rate,
                      optimizer.warmup_steps,
                      optimizer.steps,
                      std::llround(optimizer.decay_fraction * static_cast<double>(optimizer.steps))};
  options.clip_norm = optimizer.clip_norm;
  options.saves_while_training = spec.checkpoint.every_steps > 0;
  return options;
}

}  // namespace shardrun::train
