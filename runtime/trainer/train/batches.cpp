#include "runtime/trainer/train/batches.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/data/bert_loader.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

// The memory of one micro-batch; columns that a network does not read stay empty.
struct Rows {
  std::vector<int32_t> tokens, targets, document_begins, segments, lengths, next_sentence;

  model::Batch view() const {
    return {.tokens = tokens,
            .targets = targets,
            .document_begins = document_begins,
            .lengths = lengths,
            .segments = segments,
            .next_sentence = next_sentence};
  }
};

// What both kinds share: one loader for training, perhaps one for validation.
template <typename Loader>
class LoaderBatches : public Batches {
 public:
  LoaderBatches(Loader training, std::optional<Loader> validation)
      : training_(std::move(training)), validation_(std::move(validation)) {}

  const data::Corpus& training_corpus() const override { return training_.corpus(); }
  const data::Corpus* validation_corpus() const override {
    return validation_ ? &validation_->corpus() : nullptr;
  }
  int64_t validation_sequences() const override { return validation_ ? validation_->sequences() : 0; }

  Result<model::Batch> read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                                     int64_t data_rank) override {
    RETURN_IF_ERROR(training_.read_training(position, plan, micro_step, data_rank, spans()));
    return rows_.view();
  }
  Result<model::Batch> read_validation(int64_t first_slot, int64_t count) override {
    RETURN_IF_ERROR(validation_->read_validation(first_slot, count, spans()));
    return rows_.view();
  }

 protected:
  using Spans = std::conditional_t<std::is_same_v<Loader, data::Loader>, data::Rows, data::BertRows>;
  virtual Spans spans() = 0;

  Loader training_;
  std::optional<Loader> validation_;
  Rows rows_;
};

class TextBatches : public LoaderBatches<data::Loader> {
 public:
  TextBatches(data::Loader training, std::optional<data::Loader> validation, size_t tokens)
      : LoaderBatches(std::move(training), std::move(validation)) {
    rows_.tokens.resize(tokens);
    rows_.targets.resize(tokens);
    // Plain text has no borders that attention stops at.
    const bool packs =
        training_.corpus().packs_documents() || (validation_ && validation_->corpus().packs_documents());
    if (packs) rows_.document_begins.resize(tokens);
  }
  Result<int64_t> training_targets(int64_t position, const plan::BatchPlan& plan) const override {
    return training_.training_targets(position, plan);
  }
  bool has_next_sentence() const override { return false; }

 private:
  data::Rows spans() override { return {rows_.tokens, rows_.targets, rows_.document_begins}; }
};

class PairBatches : public LoaderBatches<data::BertLoader> {
 public:
  PairBatches(data::BertLoader training, std::optional<data::BertLoader> validation, size_t tokens,
              size_t sequences)
      : LoaderBatches(std::move(training), std::move(validation)) {
    for (auto* column : {&rows_.tokens, &rows_.targets, &rows_.segments}) column->resize(tokens);
    for (auto* column : {&rows_.lengths, &rows_.next_sentence}) column->resize(sequences);
  }
  Result<int64_t> training_targets(int64_t position, const plan::BatchPlan& plan) const override {
    return training_.training_targets(position, plan);
  }
  bool has_next_sentence() const override { return true; }

 private:
  data::BertRows spans() override {
    return {rows_.tokens, rows_.targets, rows_.segments, rows_.lengths, rows_.next_sentence};
  }
};

template <typename Loader>
Result<Loader> open_loader(const Network& network, const BatchOptions& options,
                           const std::vector<std::string>& files, const std::string& key) {
  ASSIGN_OR_RETURN(auto corpus, data::Corpus::open(files, key));
  if (plan::shape_of(network).vocab < corpus.vocabulary()) {
    return Error(Code::kInvalid,
                 fmt::format("[model] vocab = {} is too small for the {} tokenizer; use at least {}",
                             plan::shape_of(network).vocab, corpus.tokenizer().kind, corpus.vocabulary()));
  }
  return Loader::create(std::move(corpus), options.sequence_length, options.seed, key);
}

template <typename Loader>
struct Loaders {
  Loader training;
  std::optional<Loader> validation;
};

template <typename Loader>
Result<Loaders<Loader>> open_loaders(const Network& network, const BatchOptions& options) {
  ASSIGN_OR_RETURN(auto training,
                   open_loader<Loader>(network, options, options.training_files, "[data] files"));
  Loaders<Loader> loaders{std::move(training), std::nullopt};
  if (options.validation_files.empty()) return loaders;
  ASSIGN_OR_RETURN(auto validation,
                   open_loader<Loader>(network, options, options.validation_files, "[data] validation"));
  if (validation.corpus().tokenizer() != loaders.training.corpus().tokenizer()) {
    return Error(
        Code::kInvalid,
        "[data] validation was tokenized with another tokenizer than [data] files; make both with one");
  }
  loaders.validation.emplace(std::move(validation));
  return loaders;
}

}  // namespace

Result<std::unique_ptr<Batches>> Batches::open(const Network& network, const BatchOptions& options) {
  const auto tokens = static_cast<size_t>(options.micro_batch * options.sequence_length);
  if (plan::shape_of(network).architecture->paired) {
    ASSIGN_OR_RETURN(auto loaders, open_loaders<data::BertLoader>(network, options));
    return std::unique_ptr<Batches>(std::make_unique<PairBatches>(
        std::move(loaders.training), std::move(loaders.validation), tokens, options.micro_batch));
  }
  ASSIGN_OR_RETURN(auto loaders, open_loaders<data::Loader>(network, options));
  return std::unique_ptr<Batches>(
      std::make_unique<TextBatches>(std::move(loaders.training), std::move(loaders.validation), tokens));
}

}  // namespace shardrun::train
