#include "runtime/trainer/weights/gguf_model.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/base/io.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

const std::string kTokenizers = SOURCE_DIR "/tests/unit/data/peers/bpe/";

GgufSource source(const std::string& type, const std::string& tokenizer) {
  return {.config = R"({"model_type": ")" + type +
                    R"(", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
                        "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 404,
                        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
                        "rope_theta": 10000.0})",
          .max_positions = 64,
          .name = "tiny",
          .tokenizer_json = base::read_file(kTokenizers + tokenizer + "/tokenizer.json").value(),
          .tokenizer_config = R"({"eos_token": "<|im_end|>", "chat_template": "{{ 1 }}"})"};
}

// Whether the fact is there: its key, and right behind it the type and the text.
bool says(const GgufModel& model, const std::string& key, const std::string& text) {
  std::string wanted = key + std::string("\x08\0\0\0", 4);
  wanted += std::string(1, static_cast<char>(text.size())) + std::string(7, '\0') + text;
  return model.facts.bytes().find(wanted) != std::string::npos;
}

}  // namespace

TEST_CASE("gguf: the first bytes of a file with one fact and two tensors") {
  GgufFacts facts;
  facts.number("a", 7);
  const std::vector<TensorEntry> tensors = {{.name = "v", .type = TensorType::kF32, .shape = {3}},
                                            {.name = "w", .type = TensorType::kBf16, .shape = {2, 5}}};
  const std::string u64 = std::string(7, '\0');
  CHECK(encode_gguf(facts, tensors) ==
        "GGUF" + std::string("\x03\0\0\0", 4) + "\x02" + u64 + "\x01" + u64 +   // version, tensors, facts
            "\x01" + u64 + "a" + std::string("\x04\0\0\0\x07\0\0\0", 8) +       // a = u32 7
            "\x01" + u64 + "v" + std::string("\x01\0\0\0", 4) + "\x03" + u64 +  // v: F32 (3)
            std::string(4, '\0') + std::string(8, '\0') +                       // at 0
            "\x01" + u64 + "w" + std::string("\x02\0\0\0", 4) + "\x05" + u64 +  // w: (5, 2)
            "\x02" + u64 + std::string("\x1e\0\0\0", 4) + " " + u64 +           // BF16, at 32
            std::string(13, '\0'));                                             // up to 128
}

TEST_CASE("gguf: rows of queries and keys are paired for Llama alone") {
  const auto llama = describe_gguf(source("llama", "llama3"));
  REQUIRE_MESSAGE(llama, llama.error().to_string());
  const auto qwen = describe_gguf(source("qwen2", "qwen"));
  REQUIRE_MESSAGE(qwen, qwen.error().to_string());
  const std::vector<float> rows{0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15, 6, 16, 7, 17};  // eight rows of two
  std::vector<float> query = rows, value = rows, other = rows, key(rows.begin(), rows.begin() + 8);

  arrange_for_gguf("model.layers.0.self_attn.q_proj.weight", *llama, query);
  arrange_for_gguf("model.layers.0.self_attn.k_proj.weight", *llama, key);
  arrange_for_gguf("model.layers.0.self_attn.v_proj.weight", *llama, value);
  arrange_for_gguf("model.layers.0.self_attn.q_proj.weight", *qwen, other);

  CHECK(query == std::vector<float>{0, 10, 2, 12, 1, 11, 3, 13, 4, 14, 6, 16, 5, 15, 7, 17});
  CHECK(key == std::vector<float>{0, 10, 2, 12, 1, 11, 3, 13});
  CHECK(value == rows);
  CHECK(other == rows);
}

TEST_CASE("gguf: names, rotary factors and the tokenizer are those that llama.cpp has") {
  CHECK(*gguf_name("model.embed_tokens.weight") == "token_embd.weight");
  CHECK(*gguf_name("model.layers.12.self_attn.o_proj.weight") == "blk.12.attn_output.weight");
  CHECK(*gguf_name("model.layers.0.self_attn.q_proj.bias") == "blk.0.attn_q.bias");
  CHECK(*gguf_name("model.layers.0.post_attention_layernorm.weight") == "blk.0.ffn_norm.weight");
  CHECK_FALSE(gguf_name("model.layers.0.mlp.gate.weight"));
  const auto model = describe_gguf(source("llama", "llama3"));
  REQUIRE(model);
  REQUIRE(model->rope_factors.size() == 2);
  CHECK(model->rope_factors[0] == doctest::Approx(1.0));  // a wave of 6.3 positions
  CHECK(model->rope_factors[1] == doctest::Approx(8.0));  // one of 628, beyond the original 64
  CHECK(says(*model, "tokenizer.ggml.pre", "llama-bpe"));
  CHECK(says(*model, "tokenizer.chat_template", "{{ 1 }}"));
  CHECK(model->facts.bytes().find("tokenizer.ggml.eos_token_id" + std::string("\x04\0\0\0\x92\x01\0\0", 8)) !=
        std::string::npos);
  CHECK(model->facts.bytes().find("tokenizer.ggml.bos_token_id" + std::string("\x04\0\0\0\x90\x01\0\0", 8)) !=
        std::string::npos);  // that of the post-processor
  CHECK(says(*describe_gguf(source("qwen2", "qwen")), "tokenizer.ggml.pre", "qwen2"));
  CHECK(says(*describe_gguf(source("llama", "smollm2")), "tokenizer.ggml.pre", "smollm"));
  CHECK(says(*describe_gguf(source("llama", "gpt2")), "tokenizer.ggml.pre", "gpt-2"));
}

TEST_CASE("gguf: a configuration whose sizes no model has is refused in a line") {
  for (const char* size : {"0", "-404", "4194305", "1099511627776"}) {
    GgufSource forged = source("llama", "llama3");
    forged.config.replace(forged.config.find("404"), 3, size);
    const auto model = describe_gguf(forged);
    REQUIRE_FALSE(model);
    CHECK(model.error().message().find(std::string("its vocab_size is ") + size) != std::string::npos);
  }
}

TEST_CASE("gguf: heads whose rows make no pairs are refused in a line") {
  GgufSource forged = source("llama", "llama3");
  forged.config.replace(forged.config.find("\"head_dim\": 4"), 13, "\"head_dim\": 1");
  const auto model = describe_gguf(forged);
  REQUIRE_FALSE(model);
  CHECK(model.error().message().find("its head_dim is 1, and even ones are served") != std::string::npos);
}

TEST_CASE("gguf: another architecture or tokenizer is refused in a line") {
  const auto mixture = describe_gguf(source("mixtral", "llama3"));
  REQUIRE_FALSE(mixture);
  CHECK(mixture.error().message() ==
        "no GGUF is made of this: its model_type is \"mixtral\", and llama, qwen2 and qwen3 are served; "
        "export without --gguf");
  GgufSource strange = source("llama", "llama3");
  strange.tokenizer_json =
      R"({"model": {"type": "BPE", "vocab": {}}, "added_tokens": [3], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}})";
  CHECK(describe_gguf(strange).error().message().find("is not as usual") != std::string::npos);
  for (const char* tokenizer : {"deepseek", "gemma", "llama2", "mistral", "nfkc", "prefix_space"}) {
    CAPTURE(tokenizer);
    const auto cut = describe_gguf(source("llama", tokenizer));
    REQUIRE_FALSE(cut);
    CHECK(cut.error().message().find("its tokenizer is no tokenizer.json with byte-level BPE") !=
          std::string::npos);
  }
}
