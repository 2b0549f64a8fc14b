#include "launcher/cluster/pretrained.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "launcher/cluster/load_job.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

// SmolLM2-135M's config.json, cut to what matters.
constexpr const char* kSmolLm2 =
    R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192, "model_type": "llama",
  "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152})";

struct Checkpoint : tests::Folder {
  explicit Checkpoint(const std::string& config) {
    std::filesystem::create_directory(weights());
    std::ofstream(weights() + "/config.json") << config;
  }
  std::string weights() const { return path() + "/weights"; }

  base::Result<LoadedSpec> load(const std::string& model, const std::string& rest = "") const {
    const std::string job = path() + "/job.toml";
    std::ofstream(job)
        << "name = \"tune\"\n[program]\ntrainer = \"llama\"\n[resources]\nnodes = 1\n[model]\n" + model +
               "\ninit = \"" + weights() + "\"\n[data]\nfiles = [\"a.txt\"]\n" + rest +
               "\n[batch]\nglobal_batch = 1\n";
    return load_spec(job, {});
  }
};

std::string error_of(const base::Result<LoadedSpec>& loaded) {
  REQUIRE_FALSE(loaded);
  return loaded.error().to_string();
}

std::string changed(std::string config, const std::string& from, const std::string& to) {
  REQUIRE(config.find(from) != std::string::npos);
  return config.replace(config.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("a job that starts from a checkpoint takes its sizes from config.json") {
  const Checkpoint checkpoint(kSmolLm2);

  const auto loaded = checkpoint.load("");

  REQUIRE_MESSAGE(loaded, error_of(loaded));
  const spec::ModelSpec& model = loaded->spec.model;
  CHECK(model.layers == 30);
  CHECK(model.hidden == 576);
  CHECK(model.heads == 9);
  CHECK(model.kv_heads == 3);
  CHECK(model.ffn == 1536);
  CHECK(model.vocab == 49152);
  CHECK(model.rope_theta == 100000.0);
  CHECK(model.norm_epsilon == 1e-5);
  CHECK(model.tied_embeddings);
}

TEST_CASE("the ranks read the same sizes, for they are among the overrides of the plan") {
  const Checkpoint checkpoint(kSmolLm2);
  const auto loaded = checkpoint.load("");
  REQUIRE(loaded);

  const auto again = load_prepared_spec(checkpoint.path() + "/job.toml", loaded->overrides);

  REQUIRE(again);
  CHECK(again->spec.model.hidden == 576);
  CHECK(again->spec.model.rope_theta == 100000.0);
}

TEST_CASE("a key that says something else than the checkpoint is refused at its place") {
  const Checkpoint checkpoint(kSmolLm2);

  CHECK(error_of(checkpoint.load("rope_theta = 10000.0")) ==
        checkpoint.path() + "/job.toml:7:14: the job's model has rope_theta = 10000, and " +
            checkpoint.weights() +
            "/config.json says rope_theta = 100000; remove the key, or name other weights");
  CHECK(error_of(checkpoint.load("preset = \"llama-1m\"")).find("num_hidden_layers = 30") !=
        std::string::npos);
  CHECK(checkpoint.load("layers = 30\nnorm_epsilon = 0.00001").has_value());
}

TEST_CASE("a checkpoint that the trainer cannot compute is refused with what it lacks") {
  const auto refusal = [](const std::string& config) { return error_of(Checkpoint(config).load("")); };
  const auto says = [&](const std::string& config, const char* what) {
    const std::string said = refusal(config);
    CHECK_MESSAGE(said.find(what) != std::string::npos, said);
  };

  says(changed(kSmolLm2, "\"rope_scaling\": null",
               R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})"),
       "it scales its rotary positions by \"llama3\"");
  says(changed(kSmolLm2, "\"rope_scaling\": null", R"("rope_scaling": {"type": "linear", "factor": 2.0})"),
       "\"linear\"");
  says(changed(kSmolLm2, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\""), "its model is a qwen2");
  says(changed(kSmolLm2, "\"attention_bias\": false", "\"attention_bias\": true"), "biases");
  says(changed(kSmolLm2, "\"silu\"", "\"gelu\""), "its activation is gelu");
  says(changed(kSmolLm2, "\"rope_theta\": 100000", "\"head_dim\": 128"), "128 elements");
  says(changed(kSmolLm2, "\"hidden_size\": 576,", ""), "it has no hidden_size");
  says(changed(kSmolLm2, "\"hidden_size\": 576", "\"hidden_size\": \"576\""), "hidden_size");
  says("[]", "config.json");
  says("{", "config.json");
}

TEST_CASE("a sliding window that the sequences do not reach changes nothing, and a shorter one is refused") {
  const Checkpoint checkpoint(changed(changed(kSmolLm2, "\"llama\"", "\"mistral\""), "\"rope_scaling\": null",
                                      "\"sliding_window\": 256"));

  CHECK(checkpoint.load("", "sequence_length = 256").has_value());
  CHECK(error_of(checkpoint.load("", "sequence_length = 512")).find("write sequence_length = 256 or less") !=
        std::string::npos);
}

TEST_CASE("the rotary base of transformers 5 is found where that writes it") {
  const Checkpoint checkpoint(
      changed(changed(kSmolLm2, "\"rope_scaling\": null, ", ""), "\"rope_theta\": 100000",
              R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000.0})"));

  const auto loaded = checkpoint.load("");

  REQUIRE_MESSAGE(loaded, error_of(loaded));
  CHECK(loaded->spec.model.rope_theta == 500000.0);
}

TEST_CASE("without a config.json the job says every size itself, as before") {
  Checkpoint checkpoint(kSmolLm2);
  std::filesystem::remove(checkpoint.weights() + "/config.json");

  CHECK(checkpoint.load("preset = \"llama-1m\"").has_value());
  CHECK(error_of(checkpoint.load("")).find("[model] has no layers") != std::string::npos);
}
