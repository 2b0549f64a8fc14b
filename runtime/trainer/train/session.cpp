#include "runtime/trainer/train/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/kernels/gpu.h"
#include "runtime/trainer/model/fp8_state.h"
#include "runtime/trainer/train/host_shards.h"
#include "runtime/trainer/train/initialize.h"
#include "runtime/trainer/train/progress.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/weights/load_weights.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int> layers_of_chunks(const SessionOptions& options) {
  std::vector<int> layers;
  for (const plan::LayerRange& chunk : plan::model_run(options).stage.chunks) layers.push_back(chunk.count);
  return layers;
}

// A file that the job names and that is no weights is bad input, not a failure of the run.
template <typename T>
Result<T> as_input(Result<T> loaded) {
  if (!loaded && loaded.error().code() == Code::kCorrupt)
    return Error(Code::kInvalid, "[model] init: " + loaded.error().to_string());
  return loaded;
}

// The ranks that share experts are those that share a copy of the state, whose cut gives each its own.
Result<void> check_experts(const SessionOptions& options, const Groups& groups) {
  const int ranks = plan::shape_of(options.model).expert_parallel;
  if (ranks == 1 || (groups.experts != nullptr && groups.shard_degree() == ranks)) return {};
  return Error(Code::kInvalid,
               fmt::format("expert_parallel {} is not the shard group's {}", ranks, groups.shard_degree()));
}

plan::BatchPlan batch_plan(const SessionOptions& options, int data_parallel) {
  auto plan = plan::even_batch(options.micro_batch, options.gradient_accumulation, data_parallel);
  if (options.global_batch > 0) plan.global_batch = options.global_batch;
  return plan;
}

// Nobody should train for hours to be told at the end that there is nothing to evaluate.
Result<void> check_held_out(const SessionOptions& options, const Batches& batches) {
  for (size_t set = batches.validation_corpus() == nullptr ? 1 : 0; set <= options.evaluations.size();
       ++set) {
    const int64_t count = std::min(options.validation_sequences, batches.held_out_sequences(set));
    ASSIGN_OR_RETURN(const bool has_targets, batches.held_out_has_targets(set, count));
    if (has_targets) continue;
    return Error(
        Code::kInvalid,
        fmt::format("{}: none of the {} evaluated sequences has a token that is learned: prompts fill them; "
                    "raise [data] validation_sequences or sequence_length, or give other files",
                    set == 0 ? "[data] validation" : "[evaluation] " + options.evaluations[set - 1].name,
                    count));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const SessionOptions& options, const Groups& groups,
                                                 kernels::Backend& backend) {
  SHARDRUN_CHECK(options.device == backend.kind());
  ASSIGN_OR_RETURN(auto batches,
                   Batches::open(options.model, {options.training_files,
                                                 options.validation_files,
                                                 options.evaluations,
                                                 options.sequence_length,
                                                 options.micro_batch,
                                                 options.seed,
                                                 {groups.context_rank(), groups.context_parallel()}}));
  RETURN_IF_ERROR(check_held_out(options, *batches));
  SHARDRUN_CHECK(options.context_parallel == groups.context_parallel());
  RETURN_IF_ERROR(check_experts(options, groups));
  auto model = create_model(options.model, model_options(options, groups, backend));
  RETURN_IF_ERROR(model);
  auto layout = plan::shard_layout((*model)->blocks(), groups.shard_degree());
  const auto frozen = plan::shard_layout((*model)->frozen(), groups.shard_degree());
  ASSIGN_OR_RETURN(auto arena,
                   shard::Arena::create(
                       plan::sharded_state(layout, plan::state_options(options), frozen).bytes(), backend));
  ASSIGN_OR_RETURN(auto sums, backend.allocate(sizeof(Sums)));
  ASSIGN_OR_RETURN(auto optimizer, Optimizer::create(optimizer_options(options), (*model)->blocks(), layout,
                                                     groups.shard_rank(), backend));
  ASSIGN_OR_RETURN(auto links, StageLinks::create(options.stage, groups.stages,
                                                  plan::message_bytes(options, groups.tensor_parallel())));
  std::unique_ptr<Session> session(new Session(options, groups, std::move(batches), backend,
                                               std::move(model).value(), std::move(layout), std::move(arena),
                                               std::move(sums), std::move(optimizer), std::move(links)));
  // One rank reads for all: it writes the manifests.
  if (groups.world->rank() == 0) session->corpus_digest_ = session->batches_->training_corpus().digest();
  if (options.saves_while_training) {
    auto staging = base::Memory::create_resident(
        plan::staging_elements(session->engine_.layout(), groups.replicas()) * int64_t{sizeof(float)});
    if (!staging) return std::move(staging).error().context("copies for checkpoints beside training");
    session->staging_ = std::move(staging).value();
  }
  return session;
}

Session::Session(const SessionOptions& options, const Groups& groups, std::unique_ptr<Batches> batches,
                 kernels::Backend& backend, std::unique_ptr<model::Model> model, plan::ShardLayout layout,
                 shard::Arena arena, base::Memory sums, Optimizer optimizer, StageLinks links)
    : options_(options),
      groups_(groups),
      batch_(batch_plan(options, groups.readers())),
      batches_(std::move(batches)),
      backend_(backend),
      model_(std::move(model)),
      plan_(plan_model(options, groups.degrees())),
      arena_(std::move(arena)),
      engine_(std::move(layout), engine_options(options, backend),
              {groups.gather, groups.reduce, groups.replica}, arena_,
              plan::shard_layout(model_->frozen(), groups.shard_degree())),
      sums_(std::move(sums)),
      optimizer_(std::move(optimizer)),
      links_(std::move(links)),
      held_(layers_of_chunks(options)),
      spikes_(options.spike_factor) {
  SHARDRUN_CHECK(arena_.used_bytes() == arena_.planned_bytes());
  const plan::MemoryPlan& memory = plan_.memory;
  SHARDRUN_CHECK(arena_.planned_bytes() >=
                 memory.masters + memory.compute_copy + memory.frozen + memory.gradients + memory.gathered);
  if (options.stage.stages == 1) return;
  plan_ = plan::of_largest_stage(
      options, [&](const SessionOptions& stage) { return plan_model(stage, groups.degrees()); });
}

Result<void> Session::read_frozen() {
  if (model_->frozen().empty() || frozen_checksum_) return {};
  if (options_.initial_weights.empty())
    return Error(Code::kInvalid, "adapters stand beside weights; write [model] init = a checkpoint's folder");
  ASSIGN_OR_RETURN(frozen_checksum_,
                   as_input(weights::load_frozen(options_.initial_weights, model_->frozen(),
                                                 engine_.frozen_layout(), groups_.shard_rank(),
                                                 *groups_.world, options_.compute, engine_.frozen())));
  return {};
}

Result<void> Session::start() {
  RETURN_IF_ERROR(read_frozen());
  // Moments on the host are zero yet, and the host may not have room for a copy of the masters beside them.
  const std::span<float> spare = optimizer_.moments_on_host() ? optimizer_.moment1() : std::span<float>();
  ASSIGN_OR_RETURN(auto host, HostShards::of(backend_, {engine_.master()}, spare));
  if (options_.initial_weights.empty() || !model_->frozen().empty()) {
    initialize_parameters(model_->blocks(), engine_.layout(), groups_.shard_rank(), options_.seed, host[0]);
  } else {
    RETURN_IF_ERROR(
        as_input(weights::load_weights(options_.initial_weights, model_->blocks(), engine_.layout(),
                                       groups_.shard_rank(), *groups_.world, host[0])));
  }
  RETURN_IF_ERROR(host.store());
  std::fill(spare.begin(), spare.end(), 0.0F);
  engine_.publish();
  return {};
}

std::optional<Trace::Scope> Session::traced_scope(const char* what, int block) {
  if (progress_ != nullptr) progress_->move();
  if (trace_ == nullptr || !trace_->is_on()) return std::nullopt;
  std::string name = what;
  if (block >= 0) name += " " + model_->blocks()[block].name;
  return std::optional<Trace::Scope>(std::in_place, *trace_, std::move(name), backend_);
}

plan::StepPlan Session::step_plan(int64_t micro_steps, bool backward) const {
  return plan::StepPlan(plan::step_shape(options_, groups_.degrees(), micro_steps, backward));
}

Result<void> Session::compute(const plan::Turn& turn, model::Batch batch) {
  batch.chunk = turn.chunk;
  if (options_.stage.stages > 1) batch.held = held_.begin(turn);
  model_->set_batch(batch);
  const model::StageBorder border = model_->border();
  RETURN_IF_ERROR(links_.receive(turn, border));
  while (true) {
    ASSIGN_OR_RETURN(auto work, engine_.next());
    if (!work) break;
    const shard::Work& it = *work;
    const auto scope = traced_scope(it.is_forward ? "forward" : "backward", it.block);
    RETURN_IF_ERROR(it.is_forward
                        ? model_->forward(it.visit, it.parameters, it.frozen)
                        : model_->backward(it.visit, it.parameters, it.gradient, it.adds, it.frozen));
  }
  if (options_.stage.stages > 1) held_.end(turn, batch.backward_follows);
  return links_.send(turn, border);
}

bool Session::repeats_table() const {
  return plan::shape_of(options_.model).tied && !options_.stage.is_first() && options_.stage.is_last();
}

Result<void> Session::sum_over_ends() {
  if (groups_.stages.ends == nullptr) return {};
  const auto table = engine_.gradient().first(engine_.layout().block(0).shard_elements);
  return comm::complete(*groups_.stages.ends, groups_.stages.ends->all_reduce(table));
}

// This rank's part of the squared norm. Whole tensors of a tensor group are its first rank's.
void Session::sum_gradient_squares(Sums& sums) {
  if (groups_.replica_rank() > 0) return;
  const int64_t begin = repeats_table() ? engine_.layout().block(0).shard_elements : 0;
  if (groups_.tensor_parallel() == 1)
    return backend_.optimizer().sum_of_squares(&sums.squares, engine_.gradient().subspan(begin));
  for (const optim::UpdateRange& range : optimizer_.ranges()) {
    if ((range.whole && groups_.tensor_rank() > 0) || range.begin < begin) continue;
    backend_.optimizer().sum_of_squares(&sums.part, engine_.gradient().subspan(range.begin, range.count));
    backend_.optimizer().accumulate(&sums.squares, &sums.part, 1);
  }
}

// A rank that counted the whole batch would take longer the more ranks there are.
Result<int64_t> Session::own_targets(int64_t position) const {
  const int64_t rank = groups_.world->rank(), ranks = groups_.world->size();
  const int64_t begin = batch_.global_batch * rank / ranks, end = batch_.global_batch * (rank + 1) / ranks;
  return batches_->training_targets(position + begin, end - begin);
}

Result<int64_t> Session::targets_at(int64_t position) {
  if (targets_.position != position) {
    ASSIGN_OR_RETURN(const auto own, own_targets(position));
    targets_ = {position, static_cast<double>(own)};
    RETURN_IF_ERROR(all_reduce({&targets_.count, 1}));
  }
  return std::max<int64_t>(static_cast<int64_t>(targets_.count), 1);
}

Result<void> Session::micro_steps(int64_t position, int64_t count, int64_t targets, double* losses) {
  engine_.begin(step_plan(count, /*backward=*/true));
  RETURN_IF_ERROR(links_.begin(count, /*backward=*/true));
  plan::Turns turns(options_.stage, count, /*backward=*/true);
  while (const auto turn = turns.next()) {
    ASSIGN_OR_RETURN(auto batch,
                     batches_->read_training(position, batch_, turn->micro_step, groups_.reader()));
    batch.loss_scale = static_cast<float>(1.0 / static_cast<double>(targets));
    batch.backward_follows = true;
    batch.sequence_scale = static_cast<float>(1.0 / static_cast<double>(batch_.global_batch));
    RETURN_IF_ERROR(compute(*turn, batch));
    const bool has_loss = turn->backward && options_.stage.ends(turn->chunk);
    if (has_loss && losses != nullptr) backend_.optimizer().accumulate(losses, model_->loss_sums(), 2);
  }
  RETURN_IF_ERROR(links_.finish());
  RETURN_IF_ERROR(engine_.finish());
  return sum_over_ends();
}

Session::Attention Session::attention() const {
  const bool is_causal = plan::shape_of(options_.model).architecture->causal;
  Attention attention{plan::ops(options_, groups_.tensor_parallel()).attention, is_causal,
                      plan::cudnn_bytes(options_, groups_.tensor_parallel()), ""};
  if (!is_causal) {
    attention.refusal = fmt::format("cuDNN's masks no padding, which {} has",
                                    plan::shape_of(options_.model).architecture->called);
  } else if (options_.compute != kernels::DType::kBf16) {
    attention.refusal = "cuDNN's is of bf16";
  } else if (batches_->training_corpus().packs_documents()) {
    attention.refusal = "cuDNN's masks no documents, which token files pack into sequences";
  } else if (attention.most_cudnn_bytes == 0) {
    attention.refusal = fmt::format(
        "cuDNN's may want {} MiB of workspace, more than the {} that [gpu] attention = \"auto\" gives it",
        plan::cudnn_attention_bytes(attention.shape) >> 20, plan::kMostCudnnBytes >> 20);
  }
  return attention;
}

// Whatever step comes next: a BERT's numbers of rows are the data's. Two, because products that add to the gradients are
// others than those that write them.
Result<void> Session::rehearse() {
  ASSIGN_OR_RETURN(const auto targets, targets_at(/*position=*/0));
  if (model_->fp8() != nullptr) model_->fp8()->begin_step();
  const int64_t count = std::min<int64_t>(2, batch_.gradient_accumulation);
  RETURN_IF_ERROR(micro_steps(/*position=*/0, count, targets, /*losses=*/nullptr));
  return backend_.finish();
}

Result<StepReport> Session::step(bool stop_requested) {
  ASSIGN_OR_RETURN(const auto targets, targets_at(data_position_));
  const bool has_targets = targets_.count > 0.0;
  const auto sequences = static_cast<double>(batch_.global_batch);
  Sums& step_sums = *reinterpret_cast<Sums*>(sums_.data());
  backend_.zero(&step_sums, sizeof step_sums);
  if (model_->fp8() != nullptr) model_->fp8()->begin_step();
  RETURN_IF_ERROR(micro_steps(data_position_, batch_.gradient_accumulation, targets, &step_sums.loss));

  // Replicas hold the same gradient, ranks of a tensor group computed the same loss, and only a last stage has one: each counts once.
  sum_gradient_squares(step_sums);
  Sums own{};
  RETURN_IF_ERROR(backend_.download(&own, &step_sums, sizeof own));  // the one wait of a step
  const auto votes = saver_ ? saver_->votes() : checkpoint::BackgroundSaver::Votes{};
  const double once = repeats_loss() ? 0.0 : 1.0;
  const int64_t next_position = data_position_ + batch_.global_batch;
  ASSIGN_OR_RETURN(const auto next_targets, own_targets(next_position));
  std::array<double, 7> sums{
      own.squares, once * own.loss, once * own.next_sentence_loss,    stop_requested ? 1.0 : 0.0,
      votes[0],    votes[1],        static_cast<double>(next_targets)};
  RETURN_IF_ERROR(all_reduce(sums));
  targets_ = {next_position, sums[6]};
  if (saver_) note_end_of_save(saver_->agree({sums[4], sums[5]}));
  StepReport report;
  report.step = steps_done_ + 1;
  report.loss = sums[1] / static_cast<double>(targets) + sums[2] / sequences;
  report.gradient_norm = std::sqrt(sums[0]);
  report.learning_rate = optim::learning_rate(options_.schedule, steps_done_);
  report.stop_requested = sums[3] > 0.0;
  report.has_targets = has_targets;
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    return not_finite(report, own.loss + own.next_sentence_loss);
  }
  if (const double median = spikes_.median_below(report.loss); median > 0.0)
    return spiked(report, median, own.loss + own.next_sentence_loss);
  if (saver_ && saver_->in_flight()) {
    const auto scope = traced_scope("save", -1);
    const auto started = Clock::now();
    const SavingPhase phase(progress_);
    saver_->before_update();
    stall_seconds_ += seconds_since(started);
  }
  RETURN_IF_ERROR(update_fp8_scales());
  RETURN_IF_ERROR(update_parameters(report));
  steps_done_ = report.step;
  data_position_ = next_position;
  spikes_.note(report.loss);
  if (options_.compare_every_steps > 0 && report.step % options_.compare_every_steps == 0)
    RETURN_IF_ERROR(compare_replicas());
  return report;
}

// Where parts of the shard can be updated one by one, each waits until the next step gathers it: the links carry the first ones
// while the others are updated.
Result<void> Session::update_parameters(const StepReport& report) {
  const double scale = optim::clip_scale(report.gradient_norm, options_.clip_norm);
  if (optimizer_.updates_parts()) {
    optimizer_.begin_step(scale, report.learning_rate, report.step);
    engine_.publish([this, master = engine_.master()](int64_t begin, int64_t count) {
      const auto scope = traced_scope("update", -1);
      optimizer_.update_part(master, engine_.gradient(), begin, count);
    });
    return {};
  }
  const auto sum_over_tensor_holders = [&](std::span<double> sums) -> Result<void> {
    if (groups_.replica_rank() > 0) std::fill(sums.begin(), sums.end(), 0.0);  // replicas hold the same
    return all_reduce(sums);
  };
  const auto scope = traced_scope("update", -1);
  RETURN_IF_ERROR(optimizer_.update(engine_.master(), engine_.gradient(), scale, report.learning_rate,
                                    report.step, sum_over_tensor_holders));
  engine_.publish();
  return {};
}

// The largest values that any rank saw decide, so that all have one scale and any number of ranks can go on.
Result<void> Session::update_fp8_scales() {
  model::Fp8State* const fp8 = model_->fp8();
  if (fp8 == nullptr) return {};
  ASSIGN_OR_RETURN(const auto own, fp8->largest());
  ASSIGN_OR_RETURN(auto all, comm::gather_values(*groups_.world, own));
  const auto first = std::span(all).first(own.size());
  for (size_t at = own.size(); at < all.size(); at += own.size())
    model::take_larger(first, std::span(all).subspan(at, own.size()));
  fp8->end_step(first);
  return {};
}

Result<std::optional<double>> Session::validate() {
  if (batches_->validation_corpus() == nullptr) return std::optional<double>();
  ASSIGN_OR_RETURN(const double loss, held_out_loss(0));
  return std::optional<double>(loss);
}

Result<std::vector<double>> Session::evaluate() {
  std::vector<double> losses;
  for (size_t set = 0; set < options_.evaluations.size(); ++set) {
    ASSIGN_OR_RETURN(const double loss, held_out_loss(1 + set));
    losses.push_back(loss);
  }
  return losses;
}

// A rank that cannot read its sequences between those of the others is past saving what was trained: this one is not yet.
Result<void> Session::check_readable(size_t set, int64_t count) {
  const int64_t slots_per_round = batch_.micro_batch * batch_.data_parallel;
  Result<void> read;
  for (int64_t slot = groups_.reader() * batch_.micro_batch; read && slot < count; slot += slots_per_round) {
    if (auto batch = batches_->read_held_out(set, slot, count); !batch) read = std::move(batch).error();
  }
  double failures = read ? 0.0 : 1.0;
  RETURN_IF_ERROR(all_reduce({&failures, 1}));
  if (failures == 0.0) return {};
  has_good_state_ = true;
  if (!read) return std::move(read).error().context("validating");
  return Error(Code::kPeerLost, "another rank could not read its sequences for the validation");
}

Result<double> Session::held_out_loss(size_t set) {
  const int64_t count = std::min(options_.validation_sequences, batches_->held_out_sequences(set));
  const int64_t slots_per_round = batch_.micro_batch * batch_.data_parallel;
  std::array<double, 4> sums{0.0, 0.0, 0.0, 0.0};
  const int64_t rounds = (count + slots_per_round - 1) / slots_per_round;
  RETURN_IF_ERROR(check_readable(set, count));
  engine_.begin(step_plan(rounds, /*backward=*/false));
  RETURN_IF_ERROR(links_.begin(rounds, /*backward=*/false));
  plan::Turns turns(options_.stage, rounds, /*backward=*/false);
  while (const auto turn = turns.next()) {
    const int64_t first_slot = turn->micro_step * slots_per_round + groups_.reader() * batch_.micro_batch;
    ASSIGN_OR_RETURN(const auto batch, batches_->read_held_out(set, first_slot, count));
    RETURN_IF_ERROR(compute(*turn, batch));
    if (repeats_loss() || !options_.stage.ends(turn->chunk)) continue;
    const model::Loss loss = model_->loss();
    sums[0] += loss.sum;
    sums[1] += static_cast<double>(loss.tokens);
    sums[2] += loss.sequence_sum;
    sums[3] += static_cast<double>(loss.sequences);
  }
  RETURN_IF_ERROR(links_.finish());
  RETURN_IF_ERROR(engine_.finish());
  RETURN_IF_ERROR(all_reduce(sums));
  SHARDRUN_CHECK(sums[1] > 0.0);  // check_held_out() has seen to it
  const double next_sentence = sums[3] > 0.0 ? sums[2] / sums[3] : 0.0;
  return sums[0] / sums[1] + next_sentence;
}

double Session::unigram_entropy() const {
  const data::Corpus* validation = batches_->validation_corpus();
  return (validation != nullptr ? *validation : batches_->training_corpus()).unigram_entropy();
}

Result<void> Session::all_reduce(std::span<double> values) {
  return comm::complete(*groups_.world, groups_.world->all_reduce(values));
}

}  // namespace shardrun::train
