#include "runtime/trainer/train/batches.h"

#include <algorithm>
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

template <typename Loader>
struct Loaders {
  Loader training;
  std::optional<Loader> validation{};
  std::vector<Loader> evaluations{};

  const Loader& held_out(size_t set) const { return set == 0 ? *validation : evaluations[set - 1]; }
};

// What both kinds share: a loader for training, and those of held-out data.
template <typename Loader>
class LoaderBatches : public Batches {
 public:
  explicit LoaderBatches(Loaders<Loader> loaders) : loaders_(std::move(loaders)) {}

  const data::Corpus& training_corpus() const override { return loaders_.training.corpus(); }
  const data::Corpus* validation_corpus() const override {
    return loaders_.validation ? &loaders_.validation->corpus() : nullptr;
  }
  int64_t held_out_sequences(size_t set) const override { return loaders_.held_out(set).sequences(); }
  Result<bool> held_out_has_targets(size_t set, int64_t count) const override {
    return loaders_.held_out(set).validation_has_targets(count);
  }
  Result<int64_t> training_targets(int64_t position, int64_t count) const override {
    return loaders_.training.training_targets(position, count);
  }

  Result<model::Batch> read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                                     int64_t data_rank) override {
    RETURN_IF_ERROR(loaders_.training.read_training(position, plan, micro_step, data_rank, spans()));
    return batch();
  }
  Result<model::Batch> read_held_out(size_t set, int64_t first_slot, int64_t count) override {
    RETURN_IF_ERROR(loaders_.held_out(set).read_validation(first_slot, count, spans()));
    return batch();
  }

 protected:
  using Spans = std::conditional_t<std::is_same_v<Loader, data::Loader>, data::Rows, data::BertRows>;
  virtual Spans spans() = 0;
  virtual model::Batch batch() { return rows_.view(); }

  Loaders<Loader> loaders_;
  Rows rows_;
};

class TextBatches : public LoaderBatches<data::Loader> {
 public:
  TextBatches(Loaders<data::Loader> loaders, size_t tokens, const plan::ContextPlace& context)
      : LoaderBatches(std::move(loaders)), context_(context) {
    rows_.tokens.resize(tokens);
    rows_.targets.resize(tokens);
    // Plain text has no borders that attention stops at.
    const auto packs = [](const data::Loader& loader) { return loader.corpus().packs_documents(); };
    if (packs(loaders_.training) || (loaders_.validation && packs(*loaders_.validation)) ||
        std::any_of(loaders_.evaluations.begin(), loaders_.evaluations.end(), packs))
      rows_.document_begins.resize(tokens);
  }

 private:
  data::Rows spans() override { return {rows_.tokens, rows_.targets, rows_.document_begins}; }

  // Where ranks share sequences: the tokens and targets of this one, and where the documents of all tokens begin.
  model::Batch batch() override {
    model::Batch batch = rows_.view();
    if (context_.ranks == 1) return batch;
    tokens_ = own(rows_.tokens);
    targets_ = own(rows_.targets);
    batch.tokens = tokens_;
    batch.targets = targets_;
    return batch;
  }
  std::vector<int32_t> own(const std::vector<int32_t>& all) const {
    const int64_t length = loaders_.training.sequence_length();
    const auto sequences = static_cast<int64_t>(all.size()) / length;
    std::vector<int32_t> some;
    for (int64_t b = 0; b < sequences; ++b) {
      for (int64_t token = 0; token < context_.own_tokens(length); ++token)
        some.push_back(all[b * length + context_.position(token, length)]);
    }
    return some;
  }

  plan::ContextPlace context_;
  std::vector<int32_t> tokens_, targets_;
};

class PairBatches : public LoaderBatches<data::BertLoader> {
 public:
  PairBatches(Loaders<data::BertLoader> loaders, size_t tokens, size_t sequences)
      : LoaderBatches(std::move(loaders)) {
    for (auto* column : {&rows_.tokens, &rows_.targets, &rows_.segments}) column->resize(tokens);
    for (auto* column : {&rows_.lengths, &rows_.next_sentence}) column->resize(sequences);
  }

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
  if constexpr (std::is_same_v<Loader, data::BertLoader>) {
    const bool pairs = std::get<plan::BertConfig>(network).next_sentence;
    return Loader::create(std::move(corpus), options.sequence_length, options.seed, pairs, key);
  } else {
    return Loader::create(std::move(corpus), options.sequence_length, options.seed, key);
  }
}

template <typename Loader>
Result<Loaders<Loader>> open_loaders(const Network& network, const BatchOptions& options) {
  ASSIGN_OR_RETURN(auto training,
                   open_loader<Loader>(network, options, options.training_files, "[data] files"));
  if constexpr (std::is_same_v<Loader, data::Loader>) {
    ASSIGN_OR_RETURN(const bool has_targets, training.has_targets());
    if (!has_targets)
      return Error(
          Code::kInvalid,
          fmt::format("[data] files: none of their {} tokens is learned: they are prompts alone; make "
                      "token files of conversations in which the assistant answers",
                      training.corpus().tokens()));
  }
  Loaders<Loader> loaders{std::move(training)};
  const auto open_held_out = [&](const std::vector<std::string>& files,
                                 const std::string& key) -> Result<Loader> {
    ASSIGN_OR_RETURN(auto loader, open_loader<Loader>(network, options, files, key));
    if (loader.corpus().tokenizer() == loaders.training.corpus().tokenizer()) return loader;
    return Error(
        Code::kInvalid,
        fmt::format("{} was tokenized with another tokenizer than [data] files; make both with one", key));
  };
  if (!options.validation_files.empty()) {
    ASSIGN_OR_RETURN(auto validation, open_held_out(options.validation_files, "[data] validation"));
    loaders.validation.emplace(std::move(validation));
  }
  for (const spec::EvaluationSet& set : options.evaluations) {
    ASSIGN_OR_RETURN(auto loader, open_held_out(set.files, "[evaluation] " + set.name));
    loaders.evaluations.push_back(std::move(loader));
  }
  return loaders;
}

}  // namespace

Result<std::unique_ptr<Batches>> Batches::open(const Network& network, const BatchOptions& options) {
  const auto tokens = static_cast<size_t>(options.micro_batch * options.sequence_length);
  if (plan::shape_of(network).architecture->paired) {
    ASSIGN_OR_RETURN(auto loaders, open_loaders<data::BertLoader>(network, options));
    return std::unique_ptr<Batches>(
        std::make_unique<PairBatches>(std::move(loaders), tokens, options.micro_batch));
  }
  ASSIGN_OR_RETURN(auto loaders, open_loaders<data::Loader>(network, options));
  return std::unique_ptr<Batches>(std::make_unique<TextBatches>(std::move(loaders), tokens, options.context));
}

}  // namespace shardrun::train
