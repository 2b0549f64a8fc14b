#include "launcher/cluster/pretrained.h"

#include <filesystem>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::TomlValue;

std::string text_of(const TomlValue* section, std::string_view key) {
  const TomlValue* value = section == nullptr ? nullptr : section->find(key);
  return value != nullptr && value->kind == TomlValue::Kind::kString ? value->text : "";
}

// Returns what the spec says for a key of [model], as a fact says it.
std::string said_by(const spec::ModelSpec& model, const std::string& key) {
  const std::pair<const char*, int> sizes[] = {{"layers", model.layers},
                                               {"hidden", model.hidden},
                                               {"heads", model.heads},
                                               {"kv_heads", model.kv_heads},
                                               {"ffn", model.ffn},
                                               {"vocab", model.vocab},
                                               {"max_positions", model.max_positions},
                                               {"head_size", model.head_elements()},
                                               {"window", model.window},
                                               {"experts", model.experts.count},
                                               {"experts_per_token", model.experts.per_token},
                                               {"rope_original_length", model.rope.original_length}};
  const std::pair<const char*, double> numbers[] = {{"rope_theta", model.rope_theta},
                                                    {"norm_epsilon", model.norm_epsilon},
                                                    {"rope_factor", model.rope.factor},
                                                    {"rope_low_factor", model.rope.low_factor},
                                                    {"rope_high_factor", model.rope.high_factor},
                                                    {"balance", model.experts.balance}};
  const std::pair<const char*, bool> truths[] = {{"tied_embeddings", model.tied_embeddings},
                                                 {"qkv_bias", model.qkv_bias},
                                                 {"head_norms", model.head_norms},
                                                 {"next_sentence", model.next_sentence},
                                                 {"normalize_experts", model.experts.normalize}};
  for (const auto& [name, value] : sizes) {
    if (key == name) return std::to_string(value);
  }
  for (const auto& [name, value] : numbers) {
    if (key == name) return fmt::format("{}", value);
  }
  for (const auto& [name, value] : truths) {
    if (key == name) return value ? "true" : "false";
  }
  return fmt::format("\"{}\"", spec::name_of(model.rope.kind));
}

}  // namespace

Result<std::optional<Pretrained>> find_pretrained(std::string_view text, const std::string& file_name,
                                                  std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(TomlValue document, spec::parse_toml(text, file_name));
  for (const std::string& assignment : overrides) RETURN_IF_ERROR(spec::apply_override(document, assignment));
  const TomlValue* model = document.find("model");
  const TomlValue* program = document.find("program");
  const std::string init = text_of(model, "init");
  const std::string trainer = text_of(program, "trainer");
  if (init.empty() || init == "random" || trainer.empty()) return std::optional<Pretrained>();
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::is_directory(init, ignored) ? fs::path(init) : fs::path(init).parent_path();
  Pretrained found;
  found.path = (folder / "config.json").string();
  const auto json = base::read_file(found.path, /*limit_bytes=*/1 << 20);
  if (!json && json.error().code() == Code::kNotFound) {
    const bool has_sizes = model->find("preset") != nullptr || model->find("layers") != nullptr;
    if (has_sizes) return std::optional<Pretrained>();
    return Error(
        Code::kInvalid,
        fmt::format("{}: {} is not there; name the folder of a model as the Hugging Face hub has it, or "
                    "write the model's sizes or preset",
                    model->find("init")->origin,
                    fs::exists(init, ignored) ? found.path : init + "/config.json"));
  }
  RETURN_IF_ERROR(json);
  ASSIGN_OR_RETURN(found.config, spec::read_pretrained_config(*json, found.path, trainer));
  for (const spec::ModelFact& fact : found.config.facts) {
    // The length that a checkpoint is made for changes nothing that a preset's sizes say.
    const bool open = model->find("preset") == nullptr || fact.key == "max_positions";
    if (open && model->find(fact.key) == nullptr)
      found.overrides.push_back(fmt::format("model.{}={}", fact.key, fact.value));
  }
  return std::optional<Pretrained>(std::move(found));
}

Result<void> check_pretrained(const spec::JobSpec& spec, const Pretrained& weights) {
  for (const spec::ModelFact& fact : weights.config.facts) {
    const std::string said = said_by(spec.model, fact.key);
    if (said == fact.value) continue;
    return Error(
        Code::kInvalid,
        fmt::format(
            "{}: the job's model has {} = {}, and {} says {} = {}; remove the key, or name other weights",
            spec.origin("model." + fact.key), fact.key, said, weights.path, fact.said_as, fact.value));
  }
  return {};
}

}  // namespace shardrun::launcher
