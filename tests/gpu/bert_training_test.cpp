#include <doctest/doctest.h>

#include "tests/gpu/training.h"
#include "tests/support/token_files.h"

namespace gpu_training {
namespace {

constexpr kernels::DType kBf16 = kernels::DType::kBf16;

Run on_cpu(Run run) {
  run.where = Where::kCpu;
  return run;
}

}  // namespace

// Takes a BERT of hidden size 64. Sizes are odd where they may be, so that rows and tables begin anywhere.
void take_bert(const tests::Folder& folder, train::SessionOptions& options, int layers) {
  constexpr int32_t kWords = 180, kVocabulary = 251;
  options.model = model::BertConfig{
      .layers = layers, .hidden = 64, .heads = 1, .ffn = 101, .vocab = kVocabulary, .max_positions = 61};
  options.sequence_length = 57;
  const auto facts = tests::bert_facts(kVocabulary);
  options.training_files = {
      tests::token_file(folder, "training.tokens", facts, tests::worded_documents(40, 1, kWords))};
  options.validation_files = {
      tests::token_file(folder, "validation.tokens", facts, tests::worded_documents(10, 2, kWords))};
  options.validation_sequences = 6;  // the last batch is half padding
  if (std::holds_alternative<optim::LambOptions>(options.optimizer.kind)) options.schedule.peak = 2e-2;
}

TEST_CASE("training a BERT on a GPU: twenty steps in fp32 have the CPU's losses within 1e-5 each") {
  const tests::Folder folder;
  for (const bool lamb : {false, true}) {
    CAPTURE(lamb);
    const Run run{.lamb = lamb, .bert = true};
    const auto cpu = train(folder, on_cpu(run)), gpu = train(folder, run);
    CHECK_EQ(gpu.size(), 21);
    CHECK_LT(gpu[19], gpu[0] - 0.5);
    const double difference = largest_difference(cpu, gpu);
    MESSAGE("largest difference: ", difference, ", from ", gpu[0], " to ", gpu[19]);
    CHECK_LT(difference, 1e-5);
  }
}

TEST_CASE("training a BERT on a GPU: twenty steps in bf16 have the CPU's losses within 2e-2 each") {
  const tests::Folder folder;
  for (const bool lamb : {false, true}) {
    CAPTURE(lamb);
    const Run run{.compute = kBf16, .lamb = lamb, .bert = true};
    const double difference = largest_difference(train(folder, on_cpu(run)), train(folder, run));
    MESSAGE("largest difference: ", difference);
    CHECK_LT(difference, 2e-2);
  }
}

TEST_CASE("training a BERT on a GPU: layers started as graphs have the bits of ops started one by one") {
  const tests::Folder folder;
  const Run plain{.compute = kBf16, .steps = 4, .bert = true};
  Run run = plain;
  run.graphs = true;
  CHECK_EQ(train(folder, run), train(folder, plain));
}

TEST_CASE(
    "training a BERT on a GPU: every level of recomputation gives the same bits, and so does a second run") {
  const tests::Folder folder;
  Run run{.compute = kBf16, .steps = 4, .lamb = true, .bert = true};
  const auto plain = train(folder, run);
  CHECK_EQ(train(folder, run), plain);
  for (const auto level : {model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
    run.checkpointing = level;
    CHECK_EQ(train(folder, run), plain);
  }
}

TEST_CASE(
    "training a BERT on a GPU: a checkpoint of a GPU continues on the CPU, and one of the CPU on a GPU") {
  const tests::Folder folder;
  for (const bool lamb : {false, true}) {
    CAPTURE(lamb);
    Run run{.steps = 12, .lamb = lamb, .bert = true};
    const auto whole = train(folder, on_cpu(run));
    for (const bool begins_on_cpu : {false, true}) {
      const tests::Folder saved;
      Run first = run, second = run;
      first.steps = 6;
      first.checkpoints = second.checkpoints = saved.path();
      train(folder, begins_on_cpu ? on_cpu(first) : first);
      const auto rest = train(folder, begins_on_cpu ? second : on_cpu(second));
      CHECK_EQ(rest.size(), 7);
      CHECK_LT(largest_difference({whole.begin() + 6, whole.end()}, rest), 1e-5);
    }
  }
}

TEST_CASE(
    "training a BERT on a GPU: two ranks with shards of the model have the losses of two ranks of the CPU") {
  const tests::Folder folder;
  for (const bool lamb : {false, true}) {
    CAPTURE(lamb);
    const Run run{.steps = 8, .ranks = 2, .lamb = lamb, .bert = true};
    const auto gpu = train(folder, run);
    CHECK_LT(largest_difference(train(folder, on_cpu(run)), gpu), 1e-5);
    CHECK_EQ(train(folder, run), gpu);
  }
}

}  // namespace gpu_training
