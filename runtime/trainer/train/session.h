// Session: one rank's part of a sharded training run: model, shards, optimizer and data position, between
// steps.
//
// Every function that returns a Result is collective: all ranks call it, in the same order.
// Errors: kPeerLost and kTimeout from the communicators, after which, as after any error inside a step or a validation,
// only destruction is allowed, and the communicators must be destroyed first (runtime/trainer/shard/engine.h says why).
// kInvalid for input only the rank can check, kRefused when the loss is a spike or no number any more: the one error of a step
// after which the state is that before the step, and may be saved, as after data of a validation that cannot be read (kCorrupt there).
// kCorrupt on a rank whose weights differ from its replicas'.
// Determinism: same world size, same spec, same bits: losses, gradients and weights. Another world size sums in another
// order and agrees to rounding.
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/rank_memory.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/checkpoint/background_saver.h"
#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/data/loader.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/optim/schedule.h"
#include "runtime/trainer/shard/arena.h"
#include "runtime/trainer/shard/engine.h"
#include "runtime/trainer/train/batches.h"
#include "runtime/trainer/train/groups.h"
#include "runtime/trainer/train/network.h"
#include "runtime/trainer/train/optimizer.h"
#include "runtime/trainer/train/progress.h"
#include "runtime/trainer/train/spike_rule.h"
#include "runtime/trainer/train/stage_links.h"
#include "runtime/trainer/train/trace.h"

namespace shardrun::train {

using base::Result;

// `device` is planned for; create() is given the backend itself.
struct SessionOptions : plan::RankOptions {
  std::string offload_directory;  // of the files that a CPU's moments and activations wait in
  std::string node_name;          // for messages
  int ranks_of_node = 1;          // this job's
  std::string initial_weights;    // a safetensors file or folder; empty: the seed's random ones
  int64_t global_batch = 0;       // 0: every micro-step is full (plan::BatchPlan)
  uint64_t seed = 1;
  checkpoint::RunIdentity run;      // whose checkpoints these are
  bool shares_checkpoints = false;  // whether their folder may hold those of other runs, to be gone on with
  std::vector<std::string> training_files, validation_files;
  std::vector<spec::EvaluationSet> evaluations;
  int64_t validation_sequences = 64;  // of validation, and of each of those sets, at most
  OptimizerKind optimizer = optim::AdamWOptions{};
  optim::ScheduleOptions schedule;
  double clip_norm = 1.0;           // 0: no clipping
  double spike_factor = 0.0;        // of SpikeRule; 0: no loss is a spike
  int64_t compare_every_steps = 0;  // how often replicas compare a hash of their masters; 0: never
};

struct StepReport {
  int64_t step = 0;   // counted from 1
  double loss = 0.0;  // mean over the global batch, in nats a token; BERT: and in nats a next-sentence label
  double learning_rate = 0.0;
  double gradient_norm = 0.0;   // before clipping
  bool stop_requested = false;  // by any rank
  bool has_targets = true;      // false: every token is a prompt's, and the loss 0
};

// A checkpoint that is complete, or never will be.
struct SaveOutcome {
  int64_t step = 0;
  std::string path;
  double stall_seconds = 0.0;        // that this rank's training waited for it
  std::optional<base::Error> error;  // kPeerLost when it was another rank that could not write
};

class Session {
 public:
  // Without parameters yet: start() or resume() comes next.
  // `backend`: where it computes; outlives it. kUnsupported names what a GPU cannot do yet.
  static Result<std::unique_ptr<Session>> create(const SessionOptions& options, const Groups& groups,
                                                 kernels::Backend& backend = kernels::cpu_backend());
  // Begins anew: from the initial weights, which are read now, or the seed's random ones.
  Result<void> start();
  // Where the session notes what it computes; it outlives the session. Null: nowhere.
  void set_trace(Trace* trace) { trace_ = trace; }
  // Who is told of every block that is done; outlives the session. Null: nobody.
  void set_progress(Progress* progress) { progress_ = progress; }

  // The attention of a micro-batch, and why cuDNN cannot run it whatever the machine has; empty: it may.
  struct Attention {
    kernels::AttentionShape shape;
    bool causal;
    int64_t most_cudnn_bytes;  // that the plan of memory has
    std::string refusal;
  };
  Attention attention() const;
  // The first micro-steps of the data, without any consequence: so that all products of a step have been seen.
  Result<void> rehearse();
  // What the checkpoint that was resumed from says, until keep() says what later ones shall say.
  const checkpoint::GpuKernels& gpu_kernels() const { return gpu_kernels_; }
  void keep(checkpoint::GpuKernels kernels) { gpu_kernels_ = std::move(kernels); }

  // Which evaluation was the best so far, as the checkpoint that was resumed from says, until keep() says what later ones shall say.
  const std::optional<checkpoint::BestLoss>& best() const { return best_; }
  void keep(const std::optional<checkpoint::BestLoss>& best) { best_ = best; }

  // The data of the next step: what made its tokens, and this rank's first micro-batch, whose spans are valid until that step.
  const data::TokenizerFacts& tokenizer() const { return batches_->training_corpus().tokenizer(); }
  Result<model::Batch> next_batch() {
    return batches_->read_training(data_position_, batch_, /*micro_step=*/0, groups_.reader());
  }
  // One optimizer step. Every rank learns whether any of them was asked to stop.
  Result<StepReport> step(bool stop_requested);
  // Mean loss over the validation sequences; nullopt without validation files.
  Result<std::optional<double>> validate();
  // The same of each of SessionOptions::evaluations, in their order.
  Result<std::vector<double>> evaluate();

  // Begins the checkpoint of the current step, which is then written beside the next steps; waits for the one in
  // flight first. That a checkpoint could not be written is no error of the session: take_saves() tells.
  Result<void> start_save(const checkpoint::Store& store);
  // Waits until no save is in flight.
  Result<void> finish_save();
  // The saves that ended since the last call, oldest first; the same on all ranks.
  std::vector<SaveOutcome> take_saves() { return std::exchange(ended_saves_, {}); }
  // Continues from the newest checkpoint that every rank can read; start(), and nullopt, when the store has none. A damaged
  // one is named in `notices` (on the ranks that found the damage) and the one before it is used. kCorrupt
  // when none of them can be read, kInvalid when it is of another model or other data, kUnsupported when it is of another
  // format version.
  Result<std::optional<std::string>> resume(const checkpoint::Store& store,
                                            std::vector<std::string>& notices);

  // Says, after step() has refused a loss, or a validation its data, whether the weights before that are worth saving; the same
  // on all ranks.
  bool has_good_state() const { return has_good_state_; }
  int64_t steps_done() const { return steps_done_; }
  int64_t tokens_per_step() const { return batch_.global_batch * options_.sequence_length; }
  // In nats, of the validation text, or of the training text when there is none.
  double unigram_entropy() const;
  // Of the rank that holds most.
  const plan::ModelPlan& plan() const { return plan_; }

 private:
  Session(const SessionOptions& options, const Groups& groups, std::unique_ptr<Batches> batches,
          kernels::Backend& backend, std::unique_ptr<model::Model> model, plan::ShardLayout layout,
          shard::Arena arena, base::Memory sums, Optimizer optimizer, StageLinks links);
  // Reads what is frozen, once.
  Result<void> read_frozen();
  // Returns the schedule of `micro_steps` passes over the model, forward alone or with backward.
  plan::StepPlan step_plan(int64_t micro_steps, bool backward) const;
  // Returns the mean loss over sequences of held-out data (Batches::held_out_sequences).
  Result<double> held_out_loss(size_t set);
  Result<void> check_readable(size_t set, int64_t count);
  // Returns how many targets of this rank's part of the sequences carry loss in the step that starts at `position`.
  Result<int64_t> own_targets(int64_t position) const;
  // Returns how many targets carry loss in the step that starts at `position`, by which its mean loss is divided: at least 1, so
  // that a step of nothing but prompts has a mean. The step before has told them as a rule; else the ranks are asked.
  Result<int64_t> targets_at(int64_t position);
  // Computes the first `count` micro-steps of the step whose sequences begin at `position`; gradients add up. Where `losses`
  // is not null, the two sums of each are added to what is there.
  Result<void> micro_steps(int64_t position, int64_t count, int64_t targets, double* losses);
  // Gives the model the batch of a turn, and computes what the engine's plan has for it, between what comes from and goes to other stages.
  Result<void> compute(const plan::Turn& turn, model::Batch batch);
  // Sums the gradient of an embedding that is tied between the first stage and the last.
  Result<void> sum_over_ends();
  // Whether another rank counts the same loss.
  bool repeats_loss() const { return groups_.tensor_rank() > 0 || !options_.stage.is_last(); }
  // Whether another stage has block 0, too, and counts and writes it.
  bool repeats_table() const;
  // Forward, backward and update in the compute lane.
  std::optional<Trace::Scope> traced_scope(const char* what, int block);
  Result<void> update_parameters(const StepReport& report);
  Result<void> update_fp8_scales();
  // What a step adds up on its own rank.
  struct Sums {
    double loss, next_sentence_loss;  // as Model::loss_sums
    double squares;                   // of the gradient
    double part;                      // of them, for a moment
  };
  void sum_gradient_squares(Sums& sums);
  Result<double> sum_of_squares(std::span<const float> values);
  base::Error not_finite(const StepReport& report, double own_loss);
  base::Error spiked(const StepReport& report, double median, double own_loss);
  std::string sequences_of(int rank) const;
  Result<uint64_t> hash_of_masters();
  Result<void> compare_replicas();
  Result<void> all_reduce(std::span<double> values);
  Result<bool> try_resume(const checkpoint::Store& store, int64_t step, std::vector<std::string>& notices);
  Result<void> read_shard(const checkpoint::Store& store, const checkpoint::Manifest& saved);
  // Whether each replica reads its part of a shard alone, as it writes it, and share_parts() does the rest.
  bool reads_parts() const;
  Result<void> share_parts();
  Result<void> read_shard_beside_moments(const checkpoint::Store& store, const checkpoint::Manifest& saved,
                                         const checkpoint::LoadTarget& target,
                                         const checkpoint::ShardState& state);
  Result<void> read_shard_to_pack(const checkpoint::Store& store, const checkpoint::Manifest& saved,
                                  const checkpoint::LoadTarget& target);
  void note_end_of_save(std::optional<Result<std::string>> ended);
  Result<void> check_fits(const checkpoint::Manifest& manifest, const std::string& path) const;
  checkpoint::Manifest manifest() const;
  checkpoint::Place place() const;
  checkpoint::ShardState shard_state();
  // Returns what this rank writes to checkpoints of its shard.
  plan::ShardLayout written_layout() const;

  SessionOptions options_;
  Groups groups_;
  Trace* trace_ = nullptr;
  Progress* progress_ = nullptr;
  plan::BatchPlan batch_;
  std::unique_ptr<Batches> batches_;
  struct Targets {
    int64_t position = -1;  // of the step
    double count = 0.0;     // over all ranks
  } targets_;
  std::string corpus_digest_;  // of the training data; empty on all ranks but the first
  kernels::Backend& backend_;
  std::unique_ptr<model::Model> model_;
  plan::ModelPlan plan_;
  shard::Arena arena_;
  shard::Engine engine_;
  std::optional<uint32_t> frozen_checksum_;  // once it is read
  base::Memory sums_;                        // Sums, where the session computes
  Optimizer optimizer_;
  StageLinks links_;
  plan::HeldLayers held_;  // of a stage of a pipeline
  checkpoint::GpuKernels gpu_kernels_;
  std::optional<checkpoint::BestLoss> best_;
  SpikeRule spikes_;
  bool has_good_state_ = false;
  int64_t steps_done_ = 0;
  int64_t data_position_ = 0;
  base::Memory staging_;
  std::optional<checkpoint::BackgroundSaver> saver_;  // after what it reads: it goes first
  int64_t saving_step_ = 0;
  double stall_seconds_ = 0.0;  // of the save in flight
  std::vector<SaveOutcome> ended_saves_;
};

}  // namespace shardrun::train
