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

TEST_CASE(
    "configuration: the file for transformers adds the dtype, and positions only where there are none") {
  const auto llama = config_json(R"({"hidden_size":64})", "bfloat16", 128);
  const auto bert = config_json(R"({"max_position_embeddings":512})", "float32", 128);

  REQUIRE(llama);
  CHECK(llama->find(R"("torch_dtype": "bfloat16")") != std::string::npos);
  CHECK(llama->find(R"("max_position_embeddings": 128)") != std::string::npos);
  REQUIRE(bert);
  CHECK(bert->find(R"("max_position_embeddings": 512)") != std::string::npos);
  CHECK(!config_json("\"llama: 2 layers\"", "float32", 1));
}
