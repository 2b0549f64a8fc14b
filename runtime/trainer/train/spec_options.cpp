#include "runtime/trainer/train/spec_options.h"

#include <cmath>
#include <string>
#include <utility>

namespace shardrun::train {
namespace {

// `path` of the spec, which starts in the working directory; empty stays empty.
std::string absolute_path(const std::string& path, const record::LaunchPlan& plan) {
  return path.empty() || path.front() == '/' ? path : plan.working_directory + "/" + path;
}

}  // namespace

SessionOptions session_options(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  SessionOptions options;
  static_cast<plan::RankOptions&>(options) = plan::rank_options(spec, plan.batch);
  options.offload_directory =
      spec.memory.directory.empty() ? plan.run_directory : absolute_path(spec.memory.directory, plan);
  if (spec.model.init != "random") options.initial_weights = absolute_path(spec.model.init, plan);
  options.ranks_of_node = plan.ranks_per_node;
  options.global_batch = plan.batch.global_batch;
  options.seed = spec.data.seed;
  options.run = {plan.name, plan.id, plan.identity};
  options.shares_checkpoints = !spec.checkpoint.directory.empty();
  for (const std::string& file : spec.data.files) options.training_files.push_back(absolute_path(file, plan));
  for (const std::string& file : spec.data.validation)
    options.validation_files.push_back(absolute_path(file, plan));
  for (spec::EvaluationSet set : spec.evaluation.sets) {
    for (std::string& file : set.files) file = absolute_path(file, plan);
    options.evaluations.push_back(std::move(set));
  }
  options.validation_sequences = spec.data.validation_sequences;
  const spec::OptimizerSpec& optimizer = spec.optimizer;
  if (optimizer.kind == spec::OptimizerKind::kLamb) {
    options.optimizer =
        optim::LambOptions{optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay};
  } else {
    options.optimizer =
        optim::AdamWOptions{optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay};
  }
  options.schedule = {optimizer.schedule,
                      optimizer.learning_rate,
                      optimizer.min_learning_rate,
                      optimizer.warmup_steps,
                      optimizer.steps,
                      std::llround(optimizer.decay_fraction * static_cast<double>(optimizer.steps))};
  options.clip_norm = optimizer.clip_norm;
  options.spike_factor = spec.fault_tolerance.spike_factor;
  options.compare_every_steps = spec.fault_tolerance.compare_every_steps;
  return options;
}

}  // namespace shardrun::train
