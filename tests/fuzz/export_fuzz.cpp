// Runs libFuzzer over what an export is made of: a checkpoint's configuration and its tokenizer's files, as a GGUF, and config.json
// as it comes and goes. What is accepted can be read again, fact by fact, and ends with its last byte.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/trainer/weights/gguf_model.h"
#include "runtime/trainer/weights/hf_config.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

// Larger ones are served, and would take the fuzzer's memory and time.
constexpr int64_t kLargest = 1 << 12;

constexpr const char* kConfig =
    R"({"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_hidden_layers": 1,
        "hidden_size": 8, "intermediate_size": 16, "vocab_size": 12})";
constexpr const char* kTokenizer =
    R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
        "added_tokens": [{"id": 3, "content": "<end>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}})";

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <typename Value>
  Value take() {
    SHARDRUN_CHECK(left_.size() >= sizeof(Value));
    Value value;
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
    return value;
  }
  void skip(uint64_t size) {
    SHARDRUN_CHECK(size <= left_.size());
    left_.remove_prefix(size);
  }
  void skip_value(uint32_t type) {
    if (type == 8) return skip(take<uint64_t>());
    if (type != 9) return skip(type == 7 ? 1 : 4);
    const auto of = take<uint32_t>();
    for (auto left = take<uint64_t>(); left > 0; --left) skip_value(of);
  }
  bool is_at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
};

void check_facts(const GgufFacts& facts) {
  Reader reader(facts.bytes());
  for (uint64_t left = facts.count(); left > 0; --left) {
    reader.skip(reader.take<uint64_t>());
    reader.skip_value(reader.take<uint32_t>());
  }
  SHARDRUN_CHECK(reader.is_at_end());
}

bool is_small(const std::string& config) {
  const nlohmann::json object = base::parse_json(config);
  if (!object.is_object()) return true;
  for (const char* key : {"vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads"})
    if (const auto found = object.find(key);
        found != object.end() && found->is_number() && found->get<double>() > static_cast<double>(kLargest))
      return false;
  return true;
}

void check_gguf(const GgufSource& source) {
  const auto model = describe_gguf(source);
  if (!model) return;
  check_facts(model->facts);
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"}) {
    const int64_t rows = model->head_size * (name[25] == 'q' ? model->heads : model->kv_heads);
    if (rows > kLargest) continue;
    std::vector<float> values(static_cast<size_t>(2 * rows), 1.0F);
    arrange_for_gguf(name, *model, values);
    for (const float value : values) SHARDRUN_CHECK(value == 1.0F);  // each row is there, and none twice
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  GgufSource source{.config = kConfig, .max_positions = 64, .name = text, .tokenizer_json = kTokenizer};
  check_gguf(source);
  source.tokenizer_config = text;
  check_gguf(source);
  source.tokenizer_json = text;
  check_gguf(source);
  source = {.config = text, .max_positions = 64, .name = "tiny", .tokenizer_json = kTokenizer};
  if (is_small(text)) check_gguf(source);
  (void)gguf_name(text);
  const auto ends = end_tokens(text);
  if (const auto made = config_json(kConfig, "bfloat16", 64, text); made && ends)
    SHARDRUN_CHECK(end_tokens(*made).value() == *ends);
  for (const auto& made : {config_json(text, "float32", 64), config_json(kConfig, "bfloat16", 64, text)})
    if (made) SHARDRUN_CHECK(base::parse_json(*made).is_object());
  return 0;
}
