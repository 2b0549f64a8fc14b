#include "runtime/trainer/weights/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/visible.h"

namespace shardrun::weights {
namespace {

using base::Code;
using base::Error;
using base::member;
using base::text_of;
using nlohmann::json;

constexpr uint32_t kAllF32 = 0, kMostlyBf16 = 32;                            // general.file_type
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;  // kinds of tokens

Error refused(std::string what) {
  return Error(Code::kInvalid, fmt::format("no GGUF is made of this: {}; export without --gguf", what));
}

// Returns what llama.cpp calls the way in which a tokenizer cuts words; "" where it has no name that we know.
std::string pre_tokenizer_name(const json& pre) {
  const std::string text = base::json_text(pre);
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  // The two differ in how many digits are one word.
  if (has("(?i:'s|'t|'re|'ve|'m|'ll|'d)") && has("|\\\\p{N}{1,3}|")) return "llama-bpe";
  if (has("(?i:'s|'t|'re|'ve|'m|'ll|'d)") && has("|\\\\p{N}|")) return "qwen2";
  if (has("\"Split\"") || !has("\"ByteLevel\"") || !has("\"use_regex\":true") ||
      has("\"add_prefix_space\":true"))
    return "";
  return has("\"individual_digits\":true") ? "smollm" : has("\"Digits\"") ? "" : "gpt-2";
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;

  void set(const json& id, std::string text, int32_t kind) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= tokens.size()) return;
    tokens[id.get<size_t>()] = std::move(text);
    kinds[id.get<size_t>()] = kind;
  }
  int64_t id_of(const std::string& text) const {
    const auto found = std::find(tokens.begin(), tokens.end(), text);
    return text.empty() || found == tokens.end() ? -1 : found - tokens.begin();
  }
};

Vocabulary vocabulary_of(const json& tokenizer, size_t size) {
  Vocabulary vocabulary{std::vector<std::string>(size), std::vector<int32_t>(size, kUnused)};
  for (size_t id = 0; id < size; ++id) vocabulary.tokens[id] = fmt::format("[PAD{}]", id);
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items()) vocabulary.set(id, text, kNormal);
  const json added = tokenizer.value("added_tokens", json::array());
  for (const json& one : added)
    vocabulary.set(one.value("id", json()), text_of(member(one, "content")),
                   one.value("special", false) ? kControl : kUserDefined);
  return vocabulary;
}

std::vector<std::string> merges_of(const json& merges) {
  std::vector<std::string> all;
  for (const json& merge : merges) {
    if (merge.is_string()) all.push_back(merge.get<std::string>());
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      all.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return all;
}

// Returns a token of tokenizer_config.json: a text, or an object with its content.
std::string token_in(const json& config, const char* key) {
  const json& token = member(config, key);
  return text_of(token.is_object() ? member(token, "content") : token);
}

// Returns the token that a post-processor places before each text; "" for none.
std::string begin_placed_by(const json& processor) {
  if (!processor.is_object()) return "";
  for (const json& one : processor.value("processors", json::array()))
    if (const std::string token = begin_placed_by(one); !token.empty()) return token;
  const json single = processor.value("single", json::array());
  const json first =
      single.is_array() && !single.empty() && single[0].is_object() ? single[0] : json::object();
  return text_of(member(member(first, "SpecialToken"), "id"));
}

Result<void> add_tokenizer(const GgufSource& source, size_t size, GgufFacts& facts) {
  const json tokenizer = base::parse_json(source.tokenizer_json),
             config = base::parse_json(source.tokenizer_config);
  const json model = tokenizer.is_object() ? tokenizer.value("model", json()) : json();
  const json pre = tokenizer.is_object() ? tokenizer.value("pre_tokenizer", json()) : json();
  const std::string cut = pre_tokenizer_name(pre);
  const json normalizer = tokenizer.is_object() ? tokenizer.value("normalizer", json()) : json();
  const bool as_it_is =
      normalizer.is_null() || (cut == "qwen2" && text_of(member(normalizer, "type")) == "NFC");
  if (text_of(member(model, "type")) != "BPE" || !model.value("vocab", json()).is_object() || cut.empty() ||
      !as_it_is)
    return refused(
        "its tokenizer is no tokenizer.json with byte-level BPE that cuts words as Llama 3, Qwen 2, SmolLM "
        "or GPT-2 do");
  const Vocabulary vocabulary = vocabulary_of(tokenizer, size);
  facts.text("tokenizer.ggml.model", "gpt2");
  facts.text("tokenizer.ggml.pre", cut);
  facts.texts("tokenizer.ggml.tokens", vocabulary.tokens);
  facts.integers("tokenizer.ggml.token_type", vocabulary.kinds);
  facts.texts("tokenizer.ggml.merges", merges_of(model.value("merges", json::array())));
  for (const auto& [key, fact] : {std::pair("eos_token", "tokenizer.ggml.eos_token_id"),
                                  {"pad_token", "tokenizer.ggml.padding_token_id"}})
    if (const int64_t id = vocabulary.id_of(token_in(config, key)); id >= 0)
      facts.number(fact, static_cast<uint32_t>(id));
  const std::string placed = begin_placed_by(tokenizer.value("post_processor", json()));
  const bool begins =
      !placed.empty() || (config.is_object() && config.value("add_bos_token", json()) == true);
  if (const int64_t id = vocabulary.id_of(placed.empty() ? token_in(config, "bos_token") : placed); id >= 0)
    facts.number("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(id));
  facts.truth("tokenizer.ggml.add_bos_token", begins);
  const std::string talk =
      source.chat_template.empty() ? text_of(member(config, "chat_template")) : source.chat_template;
  if (!talk.empty()) facts.text("tokenizer.chat_template", talk);
  return {};
}

// What each frequency is divided by, as llama.cpp wants it.
std::vector<float> factors_of(const json& rope, double theta, int64_t head) {
  const double factor = rope.value("factor", 1.0), low = rope.value("low_freq_factor", 1.0),
               high = rope.value("high_freq_factor", 4.0),
               length = rope.value("original_max_position_embeddings", 8192.0);
  std::vector<float> factors;
  for (int64_t i = 0; i < head / 2; ++i) {
    const double wave =
        2.0 * std::numbers::pi * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head));
    const double smooth = std::clamp((length / wave - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1.0 / ((1.0 - smooth) / factor + smooth)));
  }
  return factors;
}

struct Tail {
  std::string_view ours, theirs;
};
constexpr Tail kTails[] = {{"input_layernorm.", "attn_norm."},    {"post_attention_layernorm.", "ffn_norm."},
                           {"self_attn.q_proj.", "attn_q."},      {"self_attn.k_proj.", "attn_k."},
                           {"self_attn.v_proj.", "attn_v."},      {"self_attn.o_proj.", "attn_output."},
                           {"self_attn.q_norm.", "attn_q_norm."}, {"self_attn.k_norm.", "attn_k_norm."},
                           {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
                           {"mlp.down_proj.", "ffn_down."}};

// Of any part of a model: more than a job spec may ask for. Of a vocabulary, whose every token takes memory here, as much.
constexpr int64_t kLargestSize = 1 << 24, kLargestVocabulary = 1 << 22;

// Throws json::exception when a member is of another type.
Result<GgufModel> describe(const GgufSource& source) {
  const json config = base::parse_json(source.config);
  const std::string type = text_of(member(config, "model_type"));
  if (type != "llama" && type != "qwen2" && type != "qwen3")
    return refused(
        fmt::format("its model_type is \"{}\", and llama, qwen2 and qwen3 are served", base::visible(type)));
  const auto whole = [&](const char* key) { return config.value(key, int64_t{0}); };
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size"}) {
    const int64_t most = std::string_view(key) == "vocab_size" ? kLargestVocabulary : kLargestSize;
    if (whole(key) < 1 || whole(key) > most)
      return refused(fmt::format("its {} is {}, and 1 to {} is served", key, whole(key), most));
  }
  GgufModel model{.heads = whole("num_attention_heads"),
                  .kv_heads = whole("num_key_value_heads"),
                  .head_size = whole("head_dim"),
                  .pairs_rows = type == "llama"};
  const int64_t head = model.head_size;
  if (head % 2 != 0) return refused(fmt::format("its head_dim is {}, and even ones are served", head));
  const json rope = config.value("rope_scaling", json());
  const double theta = config.value("rope_theta", 10000.0);
  GgufFacts& facts = model.facts;
  const auto number = [&](const char* key, int64_t value) {
    facts.number(fmt::format("{}.{}", type, key), static_cast<uint32_t>(value));
  };
  facts.text("general.architecture", type);
  facts.text("general.type", "model");
  facts.text("general.name", source.name);
  facts.number("general.file_type", source.type == TensorType::kF32 ? kAllF32 : kMostlyBf16);
  facts.number("general.quantization_version", 2);
  number("block_count", whole("num_hidden_layers"));
  number("context_length", config.value("max_position_embeddings", source.max_positions));
  number("embedding_length", whole("hidden_size"));
  number("feed_forward_length", whole("intermediate_size"));
  number("attention.head_count", model.heads);
  number("attention.head_count_kv", model.kv_heads);
  number("attention.key_length", head);
  number("attention.value_length", head);
  number("rope.dimension_count", head);
  number("vocab_size", whole("vocab_size"));
  facts.real(type + ".attention.layer_norm_rms_epsilon",
             static_cast<float>(config.value("rms_norm_eps", 1e-5)));
  facts.real(type + ".rope.freq_base", static_cast<float>(theta));
  if (text_of(member(rope, "rope_type")) == "llama3") model.rope_factors = factors_of(rope, theta, head);
  if (text_of(member(rope, "rope_type")) == "linear") {
    facts.text(type + ".rope.scaling.type", "linear");
    facts.real(type + ".rope.scaling.factor", static_cast<float>(rope.value("factor", 1.0)));
  }
  RETURN_IF_ERROR(add_tokenizer(source, static_cast<size_t>(whole("vocab_size")), facts));
  return model;
}

}  // namespace

Result<GgufModel> describe_gguf(const GgufSource& source) {
  // Files of others may have anything anywhere; the library's exceptions end here.
  try {
    return describe(source);
  } catch (const json::exception& failure) {
    return refused(fmt::format("its configuration or tokenizer is not as usual ({})", failure.what()));
  }
}

Result<std::string> gguf_name(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name == "model.embed_tokens.weight") return std::string("token_embd.weight");
  if (name == "model.norm.weight") return std::string("output_norm.weight");
  if (name == "lm_head.weight") return std::string("output.weight");
  if (name.starts_with(kLayers)) {
    const std::string_view rest = name.substr(kLayers.size());
    const size_t dot = std::min(rest.find('.'), rest.size() - 1);
    const std::string_view tail = rest.substr(dot + 1);
    for (const Tail& one : kTails)
      if (tail.starts_with(one.ours))
        return fmt::format("blk.{}.{}{}", rest.substr(0, dot), one.theirs, tail.substr(one.ours.size()));
  }
  return refused(fmt::format("it has a tensor {}", base::visible(std::string(name))));
}

void arrange_for_gguf(std::string_view name, const GgufModel& model, std::vector<float>& values) {
  const bool query = name.find(".q_proj.") != name.npos, key = name.find(".k_proj.") != name.npos;
  if (!model.pairs_rows || (!query && !key)) return;
  // Row i of a head's first half and row i of its second become neighbours.
  const int64_t heads = query ? model.heads : model.kv_heads;
  const auto elements = static_cast<int64_t>(values.size());
  const int64_t rows_of_head = model.head_size;
  const int64_t width = elements / heads / rows_of_head;
  std::vector<float> arranged(values.size());
  for (int64_t row = 0; row < heads * rows_of_head; ++row) {
    const int64_t at = row % rows_of_head, part = at / (rows_of_head / 2), i = at % (rows_of_head / 2);
    const int64_t to = row - at + 2 * i + part;
    std::copy_n(values.begin() + row * width, width, arranged.begin() + to * width);
  }
  values = std::move(arranged);
}

}  // namespace shardrun::weights
