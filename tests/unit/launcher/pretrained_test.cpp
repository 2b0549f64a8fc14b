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

TEST_CASE("a checkpoint that is not there is named where the job has no sizes of its own") {
  const Checkpoint checkpoint(kSmolLm2);
  std::filesystem::remove_all(checkpoint.weights());

  CHECK(error_of(checkpoint.load("")) == checkpoint.path() + "/job.toml:8:8: " + checkpoint.weights() +
                                             "/config.json is not there; name the folder of a model as the "
                                             "Hugging Face hub has it, or write the "
                                             "model's sizes or preset");
  CHECK(checkpoint.load("preset = \"llama-1m\""));
}

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

  const auto rope = [](const char* scaling) { return changed(kSmolLm2, "\"rope_scaling\": null", scaling); };
  says(rope(R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0})"),
       "it scales its rotary positions by \"yarn\", and the trainer knows linear and llama3");
  says(rope(R"("rope_scaling": {"type": "dynamic", "factor": 2.0})"), "\"dynamic\"");
  says(rope(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})"), "it has no low_freq_factor");
  says(rope(R"("rope_scaling": {"type": "linear"})"), "it has no factor");
  says(rope(R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})"),
       "it turns a part of each head alone");
  says(rope(R"("quantization_config": {"quant_method": "gptq"})"), "its weights are quantized (gptq)");
  says(changed(kSmolLm2, "\"model_type\": \"llama\"", "\"model_type\": \"gemma2\""), "its model is a gemma2");
  says(changed(changed(kSmolLm2, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\""),
               "\"rope_scaling\": null", "\"use_sliding_window\": true"),
       "only some of its layers have a sliding window");
  says(changed(kSmolLm2, "\"attention_bias\": false", "\"attention_bias\": true"), "a bias behind its heads");
  says(changed(kSmolLm2, "\"silu\"", "\"gelu\""), "its activation is gelu");
  says(changed(kSmolLm2, "\"hidden_size\": 576,", ""), "it has no hidden_size");
  says(changed(kSmolLm2, "\"hidden_size\": 576", "\"hidden_size\": \"576\""), "hidden_size");
  says("[]", "config.json");
  says("{", "config.json");
}

TEST_CASE("a family's config.json becomes what its models have") {
  const auto model = [](const std::string& config) {
    const auto loaded = Checkpoint(config).load("");
    REQUIRE_MESSAGE(loaded, error_of(loaded));
    return loaded->spec.model;
  };
  const auto typed = [](const char* type) {
    return changed(kSmolLm2, "\"model_type\": \"llama\"", std::string("\"model_type\": \"") + type + "\"");
  };

  const spec::ModelSpec llama = model(changed(
      kSmolLm2, "\"rope_scaling\": null",
      R"("head_dim": 128, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"));
  CHECK(llama.head_size == 128);
  CHECK(llama.rope.kind == spec::RopeScaling::kLlama3);
  CHECK(llama.rope.factor == 32.0);
  CHECK(llama.rope.high_factor == 4.0);
  CHECK(llama.rope.original_length == 8192);
  CHECK(llama.max_positions == 8192);
  const spec::ModelSpec mistral =
      model(changed(typed("mistral"), "\"rope_scaling\": null", "\"sliding_window\": 256"));
  CHECK(mistral.window == 256);
  const spec::ModelSpec qwen2 = model(typed("qwen2"));
  CHECK(qwen2.qkv_bias);
  CHECK(qwen2.window == 0);
  const spec::ModelSpec qwen3 = model(typed("qwen3"));
  CHECK(qwen3.head_norms);
  CHECK(qwen3.head_size == 128);  // where its config.json says none
  CHECK_FALSE(qwen3.qkv_bias);
  const spec::ModelSpec mixtral = model(changed(
      typed("mixtral"), "\"rope_scaling\": null",
      R"("num_local_experts": 8, "num_experts_per_tok": 3, "router_aux_loss_coef": 0.02, "sliding_window": null)"));
  CHECK(mixtral.experts.count == 8);
  CHECK(mixtral.experts.per_token == 3);
  CHECK(mixtral.experts.normalize);
  CHECK(mixtral.experts.balance == 0.02);
  const spec::ModelSpec qwen3_moe = model(changed(
      typed("qwen3_moe"), "\"rope_scaling\": null",
      R"("num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": [])"));
  CHECK(qwen3_moe.experts.count == 128);
  CHECK_FALSE(qwen3_moe.experts.normalize);
  CHECK(qwen3_moe.ffn == 768);
  CHECK(qwen3_moe.head_norms);
}

TEST_CASE("a mixture of experts that ours cannot compute is refused by what it has") {
  const auto refused = [](const std::string& more) {
    return error_of(
        Checkpoint(changed(changed(kSmolLm2, "\"model_type\": \"llama\"", "\"model_type\": \"qwen3_moe\""),
                           "\"rope_scaling\": null",
                           R"("num_experts": 128, "num_experts_per_tok": 8, )" + more))
            .load(""));
  };
  CHECK(refused(R"("moe_intermediate_size": 768, "decoder_sparse_step": 2)")
            .find("only some of its layers have experts") != std::string::npos);
  CHECK(
      refused(R"("moe_intermediate_size": 768, "router_jitter_noise": 0.1)").find("its router sees noise") !=
      std::string::npos);
  CHECK(refused(R"("rope_theta": 1e6)").find("it has no moe_intermediate_size") != std::string::npos);
}

TEST_CASE("what a family has is refused where the job says otherwise") {
  const Checkpoint checkpoint(changed(kSmolLm2, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\""));

  CHECK(error_of(checkpoint.load("qkv_bias = false")).find("qkv_bias = false, and") != std::string::npos);
  CHECK(error_of(checkpoint.load("rope_scaling = \"linear\"")).find("rope_scaling = \"linear\", and") !=
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
  CHECK(error_of(checkpoint.load("")).find("config.json is not there") != std::string::npos);
}
