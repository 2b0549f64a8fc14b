// Planned and measured memory of whole jobs: every strategy and every lever, on a model of 36 million parameters.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/process/train/trainer_job.h"

using namespace shardrun;

namespace {

const std::string kLlama = R"(name = "memory"
[resources]
ranks_per_node = 4
[program]
trainer = "llama"
[model]
layers = 6
hidden = 512
heads = 8
kv_heads = 8
ffn = 1408
vocab = 16384
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 256
[batch]
micro_batch = 2
gradient_accumulation = 1
[precision]
parameters = "bf16"
[optimizer]
steps = 2
)";

const std::string kBert = R"(name = "memory"
[resources]
ranks_per_node = 2
[program]
trainer = "bert"
[model]
layers = 6
hidden = 512
heads = 8
ffn = 2048
vocab = 16384
max_positions = 128
[data]
files = ["data/train.tokens"]
sequence_length = 128
[batch]
micro_batch = 4
[precision]
parameters = "bf16"
[optimizer]
kind = "lamb"
steps = 2
)";

// Writes token files of kBert into `folder`, with a vocabulary that spells every word.
void make_word_pieces(const std::string& folder) {
  std::ofstream vocabulary(folder + "/vocab.txt");
  for (const char* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) vocabulary << special << "\n";
  for (const char* before : {"", "##"}) {
    for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary << before << letter << "\n";
  }
  for (int word = 5 + 2 * 26; word < 16384; ++word) vocabulary << "unused" << word << "\n";
  vocabulary.close();
  const auto made =
      base::run_command({BIN_DIR "/shardrun", "data", "--tokenizer", folder + "/vocab.txt", "--output",
                         folder + "/data", "/usr/share/common-licenses/GPL-2",
                         "/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0"});
  if (!made) FAIL(made.error().to_string());
}

// Each lever and strategy with what it changes.
struct Case {
  std::string name;
  std::vector<std::string> settings;
};

record::RunRecord check(const testing::TrainerJob& job, const Case& tried) {
  CAPTURE(tried.name);
  const record::RunRecord record = job.run(tried.settings);
  REQUIRE(record.metrics);
  const plan::MemoryPlan& plan = record.metrics->planned;
  int64_t highest = 0;
  for (const auto& bytes : record.peak_memory_bytes) highest = std::max(highest, bytes.value_or(0));
  const double ratio = static_cast<double>(highest) / static_cast<double>(plan.total());
  MESSAGE(tried.name << ": planned " << plan.total() / 1000000 << " MB, measured " << highest / 1000000
                     << " MB, " << (ratio - 1.0) * 100.0 << " %");
  CHECK_GT(plan.process, 1000000);
  CHECK_GT(ratio, 0.98);
  CHECK_LT(ratio, 1.02);
  return record;
}

}  // namespace

TEST_CASE("memory: every strategy peaks within 2 % of its plan, and full_shard holds 26 % of the state") {
  const testing::TrainerJob job(kLlama);
  const auto whole = check(job, {"no_shard", {"sharding.strategy=\"no_shard\""}});
  const auto quarter = check(job, {"full_shard", {}});
  CHECK_LE(static_cast<double>(quarter.metrics->planned.model_state()),
           0.26 * static_cast<double>(whole.metrics->planned.model_state()));
  check(job, {"hybrid_shard 2x2", {"sharding.strategy=\"hybrid_shard\"", "sharding.shard_degree=2"}});
  check(job, {"shard_grad_op", {"sharding.strategy=\"shard_grad_op\""}});
  check(job, {"tensor_parallel 2", {"sharding.tensor_parallel=2"}});
  check(job, {"one rank", {"resources.ranks_per_node=1"}});
}

TEST_CASE("memory: every lever peaks within 2 % of its plan") {
  const testing::TrainerJob job(kLlama);
  check(job, {"selective", {"memory.activation_checkpointing=\"selective\""}});
  check(job, {"full", {"memory.activation_checkpointing=\"full\""}});
  check(job, {"activation offload", {"memory.activation_offload=true"}});
  check(job, {"optimizer offload", {"memory.optimizer_offload=true"}});
  check(job, {"fp32", {"precision.parameters=\"fp32\""}});
  check(job, {"accumulation", {"batch.gradient_accumulation=2"}});
  check(job, {"three layers together", {"sharding.wrap=3"}});
  check(job, {"six layers together", {"sharding.wrap=6"}});  // one of two buffers never has that unit
  check(job, {"four layers together, on two ranks", {"sharding.wrap=4", "resources.ranks_per_node=2"}});
  check(job, {"three layers together, kept, in two micro-steps",
              {"sharding.wrap=3", "sharding.strategy=\"shard_grad_op\"", "batch.gradient_accumulation=2"}});
  check(job, {"sums in bf16", {"precision.reduce=\"bf16\"", "batch.gradient_accumulation=2"}});
  check(job,
        {"sums in bf16 over replicas",
         {"precision.reduce=\"bf16\"", "sharding.strategy=\"hybrid_shard\"", "sharding.shard_degree=2"}});
  check(job, {"shared sequences", {"sharding.context_parallel=4", "data.sequence_length=512"}});
}

TEST_CASE("memory: the stage of a pipeline that holds most peaks within 2 % of its plan") {
  const testing::TrainerJob job(kLlama);
  check(job, {"two stages of two ranks",
              {"sharding.pipeline_parallel=2", "batch.gradient_accumulation=4", "model.vocab=4096"}});
  check(job,
        {"four stages",
         {"sharding.pipeline_parallel=4", "batch.gradient_accumulation=4", "precision.parameters=\"fp32\""}});
  check(job, {"two stages of three chunks, of two ranks",
              {"sharding.pipeline_parallel=2", "sharding.virtual_stages=3", "batch.gradient_accumulation=4",
               "model.vocab=4096"}});
  check(job, {"four stages of two chunks, uneven",
              {"sharding.pipeline_parallel=4", "sharding.virtual_stages=2", "model.layers=9",
               "model.vocab=1024", "batch.gradient_accumulation=8"}});
}

TEST_CASE(
    "memory: a BERT peaks within 2 % of its plan, also where its state is cut and its layers are made "
    "again") {
  const testing::TrainerJob job(kBert);
  make_word_pieces(job.folder());
  const std::string data = "data.files=[\"" + job.folder() + "/data/train.tokens\"]";
  check(job, {"bert", {data, "sharding.strategy=\"no_shard\"", "resources.ranks_per_node=1"}});
  check(job, {"bert full_shard", {data}});
  check(job, {"bert selective", {data, "memory.activation_checkpointing=\"selective\""}});
}

TEST_CASE(
    "memory: adapters beside frozen weights peak within 2 % of their plan, which is a third of the whole "
    "model's") {
  const testing::TrainerJob whole(kLlama);
  const auto trained = check(whole, {"to begin with", {"optimizer.steps=1"}});
  const std::string weights = whole.folder() + "/weights";
  const auto exported = base::run_command({BIN_DIR "/shardrun", "export", whole.newest_run(), "--output",
                                           weights, "--runs", whole.folder() + "/runs"});
  if (!exported) FAIL(exported.error().to_string());
  const testing::TrainerJob job(kLlama +
                                "[lora]\nrank = 16\nmatrices = [\"q_proj\", \"v_proj\", \"down_proj\"]\n");
  const std::string init = "model.init=\"" + weights + "\"";
  const auto sharded = check(job, {"lora", {init}});
  CHECK_LT(sharded.metrics->planned.model_state() * 3, trained.metrics->planned.model_state());
  check(job, {"lora alone", {init, "resources.ranks_per_node=1"}});
  check(job, {"lora no_shard", {init, "sharding.strategy=\"no_shard\"", "resources.ranks_per_node=2"}});
  check(job, {"lora fp32, saved", {init, "precision.parameters=\"fp32\"", "checkpoint.every_steps=1"}});
}

TEST_CASE("memory: saving beside training peaks within 2 % of its plan") {
  const testing::TrainerJob job(kLlama);
  const auto record = check(job, {"saving", {"checkpoint.every_steps=1", "optimizer.steps=3"}});
  CHECK_GE(record.metrics->planned.saving, record.metrics->planned.masters * 3);
}
