#include "runtime/trainer/weights/hf_config.h"

#include <doctest/doctest.h>

#include "runtime/plan/model/llama.h"

using namespace shardrun;
using namespace shardrun::weights;

TEST_CASE(
    "configuration: a Llama's sizes are under Hugging Face's keys, and whether its embeddings are tied") {
  plan::LlamaConfig config;
  config.layers = 2;
  config.hidden = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn = 96;
  config.vocab = 256;

  CHECK(
      hf_config(config) ==
      R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"head_dim":16,"hidden_act":"silu",)"
      R"("hidden_size":64,"intermediate_size":96,"mlp_bias":false,"model_type":"llama","num_attention_heads":4,)"
      R"("num_hidden_layers":2,"num_key_value_heads":2,"rms_norm_eps":1e-05,"rope_theta":10000.0,)"
      R"("tie_word_embeddings":false,"vocab_size":256})");
  config.tied_embeddings = true;
  CHECK(hf_config(config).find(R"("tie_word_embeddings":true)") != std::string::npos);
}

TEST_CASE("configuration: a family is named by what its models have beside a Llama's sizes") {
  const auto with = [](auto change) {
    plan::LlamaConfig config{.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn = 96, .vocab = 256};
    change(config);
    return hf_config(config);
  };
  const auto has = [](const std::string& text, const char* what) {
    CHECK_MESSAGE(text.find(what) != std::string::npos, text);
  };

  const std::string qwen2 = with([](auto& config) { config.qkv_bias = true, config.max_positions = 32768; });
  has(qwen2, R"("architectures":["Qwen2ForCausalLM"])");
  has(qwen2, R"("model_type":"qwen2")");
  has(qwen2, R"("max_position_embeddings":32768)");
  const std::string qwen3 = with([](auto& config) { config.head_norms = true, config.head_size = 128; });
  has(qwen3, R"("architectures":["Qwen3ForCausalLM"])");
  has(qwen3, R"("head_dim":128)");
  const std::string mistral = with([](auto& config) { config.window = 4096; });
  has(mistral, R"("architectures":["MistralForCausalLM"])");
  has(mistral, R"("sliding_window":4096)");
  const std::string mixtral = with([](auto& config) { config.experts = {.count = 8, .balance = 0.02}; });
  has(mixtral, R"("architectures":["MixtralForCausalLM"])");
  has(mixtral, R"("num_experts_per_tok":2,)");
  has(mixtral, R"("num_local_experts":8,)");
  has(mixtral, R"("router_aux_loss_coef":0.02)");
  const std::string qwen3_moe = with([](auto& config) {
    config.head_norms = true, config.experts = {16, 4, /*normalize=*/false};
  });
  has(qwen3_moe, R"("architectures":["Qwen3MoeForCausalLM"])");
  has(qwen3_moe, R"("moe_intermediate_size":96,"norm_topk_prob":false,)");
  has(qwen3_moe, R"("num_experts":16,"num_experts_per_tok":4,)");
  const std::string llama = with([](auto& config) {
    config.rope = {spec::RopeScaling::kLlama3, 32.0, 1.0, 4.0, 8192};
  });
  has(llama, R"("architectures":["LlamaForCausalLM"])");
  has(llama, R"("rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,)"
             R"("original_max_position_embeddings":8192,"rope_type":"llama3"})");
}

TEST_CASE(
    "configuration: the file for transformers adds the dtype, and positions only where there are none") {
  const auto llama = config_json(R"({"hidden_size":64})", "bfloat16", 128);
  const auto bert = config_json(R"({"max_position_embeddings":512})", "float32", 128);

  REQUIRE(llama);
  CHECK(llama->find(R"("torch_dtype": "bfloat16")") != std::string::npos);
  CHECK(llama->find(R"("max_position_embeddings": 128)") != std::string::npos);
  CHECK(llama->find(R"("eos_token_id": null)") != std::string::npos);
  const auto begun = config_json(R"({"hidden_size":64})", "bfloat16", 128, R"({"eos_token_id": [2, 7]})");
  CHECK(end_tokens(*begun).value() == std::vector<int32_t>{2, 7});
  CHECK(begun->find("bos_token_id") == std::string::npos);  // as it was before
  REQUIRE(bert);
  CHECK(bert->find(R"("max_position_embeddings": 512)") != std::string::npos);
  CHECK(!config_json("\"llama: 2 layers\"", "float32", 1));
  CHECK(!config_json("{}", "float32", 1, "[]"));
  CHECK(config_json(R"({"model_type": 7})", "float32", 1));
}

TEST_CASE("configuration: the tokens that end an answer are one, several or none, and nothing else") {
  CHECK(end_tokens(R"({"eos_token_id": 2})").value() == std::vector<int32_t>{2});
  CHECK(end_tokens(R"({"eos_token_id": [128001, 128009]})").value() == std::vector<int32_t>{128001, 128009});
  CHECK(end_tokens(R"({"eos_token_id": null})").value().empty());
  CHECK(end_tokens("{}").value().empty());
  CHECK(!end_tokens(R"({"eos_token_id": "</s>"})"));
  CHECK(!end_tokens("[]"));
}

TEST_CASE("configuration: an end token that is no id of any vocabulary is refused, and not another one") {
  CHECK(end_tokens(R"({"eos_token_id": -1})").value() == std::vector<int32_t>{-1});
  for (const char* id : {"4294967298", "2147483648", "-2147483649", "18446744073709551615"}) {
    const auto ends = end_tokens(std::string(R"({"eos_token_id": [2, )") + id + "]}");
    REQUIRE_FALSE(ends);
    CHECK(ends.error().message() == std::string("eos_token_id is ") + id + ", an id of no vocabulary");
  }
}
