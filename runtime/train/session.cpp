#include "runtime/train/session.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/train/initialize.h"
#include "runtime/weights/hf_config.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

std::vector<int64_t> elements_of(const std::vector<model::BlockLayout>& blocks) {
  std::vector<int64_t> elements;
  for (const model::BlockLayout& block : blocks) elements.push_back(block.elements);
  return elements;
}

shard::EngineOptions engine_options(const SessionOptions& options, const model::Model& model) {
  const bool revisits = model.visits().size() > model.blocks().size();
  return {.compute = options.compute,
          .prefetch = options.prefetch,
          .accumulates = options.gradient_accumulation > 1 || revisits,
          .keeps_parameters = options.keeps_parameters};
}

int64_t arena_bytes(const shard::EngineOptions& options, const shard::ShardLayout& layout) {
  return shard::Engine::planned_bytes(layout, options) +
         2 * shard::Arena::bytes_of<float>(layout.flat_shard_elements);
}

model::LlamaOptions llama_options(const SessionOptions& options, const Groups& groups) {
  return {.compute = options.compute,
          .micro_batch = static_cast<int>(options.micro_batch),
          .sequence_length = options.sequence_length,
          .checkpointing = options.checkpointing,
          .offload_directory = options.activation_offload_directory,
          .tensor = groups.tensor};
}

std::vector<int> visit_order(const model::Model& model) {
  std::vector<int> order(model.visits().begin(), model.visits().end());
  order.insert(order.end(), model.visits().rbegin(), model.visits().rend());
  return order;
}

// Plain text has no borders that attention stops at.
bool packs_documents(const data::Loader& training, const std::optional<data::Loader>& validation) {
  return training.corpus().packs_documents() || (validation && validation->corpus().packs_documents());
}

Result<data::Loader> open_loader(const SessionOptions& options, const std::vector<std::string>& files,
                                 const std::string& key) {
  auto corpus = data::Corpus::open(files, key);
  if (!corpus) return std::move(corpus).error();
  if (options.model.vocab < corpus->vocabulary()) {
    return Error(Code::kInvalid,
                 fmt::format("[model] vocab = {} is too small for the {} tokenizer; use at least {}",
                             options.model.vocab, corpus->tokenizer().kind, corpus->vocabulary()));
  }
  return data::Loader::create(std::move(corpus).value(), options.sequence_length, options.seed, key);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const SessionOptions& options, const Groups& groups) {
  RETURN_IF_ERROR(model::check(options.model));
  auto loader = open_loader(options, options.training_files, "[data] files");
  if (!loader) return std::move(loader).error();
  std::optional<data::Loader> validation;
  if (!options.validation_files.empty()) {
    auto opened = open_loader(options, options.validation_files, "[data] validation");
    if (!opened) return std::move(opened).error();
    if (opened->corpus().tokenizer() != loader->corpus().tokenizer()) {
      return Error(
          Code::kInvalid,
          "[data] validation was tokenized with another tokenizer than [data] files; make both with one");
    }
    validation.emplace(std::move(opened).value());
  }
  auto model = model::Llama::create(options.model, llama_options(options, groups));
  if (!model) return std::move(model).error();
  auto layout = shard::make_layout(elements_of((*model)->blocks()), groups.shard_degree());
  auto arena = shard::Arena::create(arena_bytes(engine_options(options, **model), layout));
  if (!arena) return std::move(arena).error();
  return std::unique_ptr<Session>(new Session(options, groups, std::move(loader).value(),
                                              std::move(validation), std::move(model).value(),
                                              std::move(layout), std::move(arena).value()));
}

Session::Session(const SessionOptions& options, const Groups& groups, data::Loader loader,
                 std::optional<data::Loader> validation, std::unique_ptr<model::Model> model,
                 shard::ShardLayout layout, shard::Arena arena)
    : options_(options),
      groups_(groups),
      shape_{options.micro_batch, options.gradient_accumulation, groups.data_parallel()},
      loader_(std::move(loader)),
      validation_(std::move(validation)),
      model_(std::move(model)),
      order_(visit_order(*model_)),
      activation_bytes_(
          model::Llama::activation_bytes(options.model, llama_options(options, groups)).resident),
      arena_(std::move(arena)),
      engine_(std::move(layout), engine_options(options, *model_),
              {groups.gather, groups.reduce, groups.replica}, arena_),
      adamw_(update_ranges(model_->blocks(), engine_.layout(), groups.shard_rank()), options.adamw,
             arena_.take<float>(engine_.layout().flat_shard_elements),
             arena_.take<float>(engine_.layout().flat_shard_elements)),
      tokens_(static_cast<size_t>(options.micro_batch * options.sequence_length)),
      targets_(tokens_.size()),
      document_begins_(packs_documents(loader_, validation_) ? tokens_.size() : 0) {
  SHARDRUN_CHECK(arena_.used_bytes() == arena_.planned_bytes());
  initialize_parameters(model_->blocks(), engine_.layout(), groups.shard_rank(), options.seed,
                        engine_.master());
  engine_.publish();
}

Result<void> Session::forward() {
  const auto visits = static_cast<int>(model_->visits().size());
  for (int visit = 0; visit < visits; ++visit) {
    const int block = order_[static_cast<size_t>(visit)];
    auto parameters = engine_.acquire(block, upcoming(static_cast<size_t>(visit) + 1));
    if (!parameters) return std::move(parameters).error();
    RETURN_IF_ERROR(model_->forward(visit, *parameters));
    engine_.release(block);
  }
  return {};
}

Result<void> Session::backward(bool last_micro_step) {
  const auto visits = static_cast<int>(model_->visits().size());
  for (int visit = visits - 1; visit >= 0; --visit) {
    const size_t place = order_.size() - 1 - static_cast<size_t>(visit);
    const int block = order_[place];
    auto parameters = engine_.acquire(block, upcoming(place + 1));
    if (!parameters) return std::move(parameters).error();
    auto gradient = engine_.gradient_buffer(block);
    if (!gradient) return std::move(gradient).error();
    RETURN_IF_ERROR(model_->backward(visit, *parameters, *gradient));
    engine_.release(block);
    const auto later = upcoming(place + 1);
    const bool visited_again = std::find(later.begin(), later.end(), block) != later.end();
    RETURN_IF_ERROR(engine_.reduce(block, last_micro_step && !visited_again));
  }
  return {};
}

// This rank's part of the squared norm. Whole tensors of a tensor group are its first rank's.
double Session::gradient_squares() {
  if (groups_.replica_rank() > 0) return 0.0;
  if (groups_.tensor_parallel() == 1) return optim::sum_of_squares(engine_.gradient());
  double sum = 0.0;
  for (const optim::UpdateRange& range : adamw_.ranges()) {
    if (range.whole && groups_.tensor_rank() > 0) continue;
    sum += optim::sum_of_squares(
        engine_.gradient().subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.count)));
  }
  return sum;
}

Result<StepReport> Session::step(bool stop_requested) {
  const auto targets = loader_.training_targets(data_position_, shape_);
  if (!targets) return targets.error();
  const auto loss_scale = static_cast<float>(1.0 / static_cast<double>(*targets));
  double loss_sum = 0.0;
  for (int64_t micro_step = 0; micro_step < shape_.gradient_accumulation; ++micro_step) {
    RETURN_IF_ERROR(loader_.read_training(data_position_, shape_, micro_step, groups_.data_rank(), rows()));
    model_->set_batch({.tokens = tokens_,
                       .targets = targets_,
                       .document_begins = document_begins_,
                       .loss_scale = loss_scale});
    engine_.begin_micro_step(/*first=*/micro_step == 0);
    RETURN_IF_ERROR(forward());
    loss_sum += model_->loss().sum;
    RETURN_IF_ERROR(backward(/*last_micro_step=*/micro_step + 1 == shape_.gradient_accumulation));
  }
  RETURN_IF_ERROR(engine_.finish_reductions());

  // Replicas hold the same gradient, and ranks of a tensor group computed the same loss: each counts once.
  const double squares = gradient_squares();
  const auto votes = saver_ ? saver_->votes() : checkpoint::BackgroundSaver::Votes{};
  std::array<double, 5> sums{squares, groups_.tensor_rank() == 0 ? loss_sum : 0.0, stop_requested ? 1.0 : 0.0,
                             votes[0], votes[1]};
  RETURN_IF_ERROR(all_reduce(sums));
  if (saver_) note_end_of_save(saver_->agree({sums[3], sums[4]}));
  StepReport report;
  report.step = steps_done_ + 1;
  report.loss = sums[1] / static_cast<double>(*targets);
  report.gradient_norm = std::sqrt(sums[0]);
  report.learning_rate = optim::learning_rate(options_.schedule, steps_done_);
  report.stop_requested = sums[2] > 0.0;
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    return Error(Code::kRefused,
                 fmt::format("step {}: loss {} and gradient norm {} are not finite; lower [optimizer] "
                             "learning_rate or lengthen warmup_steps",
                             report.step, report.loss, report.gradient_norm));
  }
  if (saver_) saver_->before_update();
  adamw_.update(engine_.master(), engine_.gradient(),
                optim::clip_scale(report.gradient_norm, options_.clip_norm), report.learning_rate,
                report.step);
  engine_.publish();
  steps_done_ = report.step;
  data_position_ += shape_.global_batch();
  return report;
}

Result<std::optional<double>> Session::validate() {
  if (!validation_) return std::optional<double>();
  const int64_t count = std::min(options_.validation_sequences, validation_->sequences());
  const int64_t slots_per_round = shape_.micro_batch * shape_.data_parallel;
  std::array<double, 2> sums{0.0, 0.0};
  for (int64_t round = 0; round * slots_per_round < count; ++round) {
    const int64_t first_slot = round * slots_per_round + groups_.data_rank() * shape_.micro_batch;
    RETURN_IF_ERROR(validation_->read_validation(first_slot, count, rows()));
    model_->set_batch({.tokens = tokens_, .targets = targets_, .document_begins = document_begins_});
    RETURN_IF_ERROR(forward());
    const model::Loss loss = model_->loss();
    if (groups_.tensor_rank() > 0) continue;
    sums[0] += loss.sum;
    sums[1] += static_cast<double>(loss.tokens);
  }
  RETURN_IF_ERROR(all_reduce(sums));
  return std::optional<double>(sums[0] / sums[1]);
}

double Session::unigram_entropy() const {
  return (validation_ ? *validation_ : loader_).corpus().unigram_entropy();
}

Result<void> Session::all_reduce(std::span<double> values) {
  auto pending = groups_.world->all_reduce(values);
  if (!pending) return std::move(pending).error();
  return groups_.world->wait(*pending);
}

checkpoint::Manifest Session::manifest() const {
  checkpoint::Manifest manifest;
  manifest.step = steps_done_;
  manifest.data_position = data_position_;
  manifest.spread = place().spread;
  manifest.data = {loader_.corpus().tokens(), options_.sequence_length, options_.seed};
  manifest.model = weights::hf_config(options_.model);
  std::vector<std::vector<model::BlockLayout>> by_tensor_rank;
  for (int rank = 0; rank < groups_.tensor_parallel(); ++rank)
    by_tensor_rank.push_back(model::block_layouts(options_.model, rank, groups_.tensor_parallel()));
  manifest.blocks = checkpoint::describe_blocks(by_tensor_rank);
  return manifest;
}

checkpoint::Place Session::place() const {
  return {{groups_.tensor_parallel(), groups_.shard_degree(), groups_.replicas()},
          groups_.tensor_rank(),
          groups_.shard_rank(),
          groups_.replica_rank()};
}

checkpoint::ShardState Session::shard_state() {
  return {engine_.master(), adamw_.moment1(), adamw_.moment2()};
}

Result<void> Session::start_save(const checkpoint::Store& store) {
  RETURN_IF_ERROR(finish_save());
  saver_.emplace(store, /*publishes=*/groups_.world->rank() == 0, groups_.world->size());
  saver_->start(manifest(), place(), engine_.layout(), shard_state());
  saving_step_ = steps_done_;
  return {};
}

Result<void> Session::finish_save() {
  while (saver_ && saver_->in_flight()) {
    saver_->wait();
    auto votes = saver_->votes();
    RETURN_IF_ERROR(all_reduce(votes));
    note_end_of_save(saver_->agree(votes));
  }
  return {};
}

void Session::note_end_of_save(std::optional<Result<std::string>> ended) {
  if (!ended) return;
  ended_saves_.push_back({saving_step_, *ended ? **ended : std::string(),
                          *ended ? std::nullopt : std::optional<base::Error>(ended->error())});
}

Result<std::optional<std::string>> Session::resume(const checkpoint::Store& store,
                                                   std::vector<std::string>& notices) {
  int64_t tried = std::numeric_limits<int64_t>::max();
  while (true) {
    int64_t candidate = -1;
    auto steps = groups_.world->rank() == 0 ? store.steps() : std::vector<int64_t>();
    if (steps) {
      const auto next =
          std::find_if(steps->begin(), steps->end(), [&](int64_t step) { return step < tried; });
      if (next != steps->end()) candidate = *next;
    }
    auto pending = groups_.world->broadcast(std::as_writable_bytes(std::span(&candidate, 1)), /*root=*/0);
    if (!pending) return std::move(pending).error();
    RETURN_IF_ERROR(groups_.world->wait(*pending));
    if (!steps) return std::move(steps).error();
    if (candidate < 0 && tried == std::numeric_limits<int64_t>::max()) return std::optional<std::string>();
    if (candidate < 0) {
      return Error(Code::kCorrupt,
                   fmt::format("no checkpoint in {} can be read; move the folder away to start anew",
                               store.directory()));
    }
    auto resumed = try_resume(store, candidate, notices);
    if (!resumed) return std::move(resumed).error();
    if (*resumed) return std::optional<std::string>(store.path_of(candidate));
    tried = candidate;
  }
}

// False when any rank found the checkpoint damaged.
Result<bool> Session::try_resume(const checkpoint::Store& store, int64_t step,
                                 std::vector<std::string>& notices) {
  auto manifest_read = store.read_manifest(step);
  Result<void> loaded;
  if (!manifest_read) {
    loaded = manifest_read.error();
  } else {
    loaded = check_fits(*manifest_read, store.path_of(step));
    const checkpoint::LoadTarget target{model_->blocks(), engine_.layout(), groups_.shard_rank()};
    if (loaded) loaded = store.read_shard(*manifest_read, target, shard_state());
  }
  const bool misfit =
      !loaded && (loaded.error().code() == Code::kInvalid || loaded.error().code() == Code::kUnsupported);
  std::array<double, 2> failures{!loaded && !misfit ? 1.0 : 0.0, misfit ? 1.0 : 0.0};
  RETURN_IF_ERROR(all_reduce(failures));
  if (misfit) return std::move(loaded).error();
  if (failures[1] > 0.0) return Error(Code::kPeerLost, "another rank refused the checkpoint");
  if (!loaded) {
    notices.push_back(fmt::format("checkpoint {} is damaged and passed over: {}", store.path_of(step),
                                  loaded.error().to_string()));
  }
  if (failures[0] > 0.0) return false;
  steps_done_ = manifest_read->step;
  data_position_ = manifest_read->data_position;
  engine_.publish();
  return true;
}

Result<void> Session::check_fits(const checkpoint::Manifest& saved, const std::string& path) const {
  const checkpoint::Manifest ours = manifest();
  if (const auto same = checkpoint::same_tensors(saved, ours); !same) {
    return Error(Code::kInvalid,
                 fmt::format("checkpoint {}: {}; give this job its own [checkpoint] directory", path,
                             same.error().message()));
  }
  if (saved.data != ours.data) {
    return Error(
        Code::kInvalid,
        fmt::format(
            "checkpoint {} was trained on other data ({} tokens, sequence_length {}, seed {}; this job: "
            "{}, {}, {}); give this job its own [checkpoint] directory",
            path, saved.data.corpus_tokens, saved.data.sequence_length, saved.data.seed,
            ours.data.corpus_tokens, ours.data.sequence_length, ours.data.seed));
  }
  return {};
}

}  // namespace shardrun::train
