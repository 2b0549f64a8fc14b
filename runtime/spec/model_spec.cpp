#include "runtime/spec/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/spec/architecture.h"
#include "runtime/spec/model_presets.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {
namespace {

constexpr int kBertPositions = 512, kRobertaPositions = 514;  // a RoBERTa counts from 2
constexpr Word<RopeScaling> kScalings[] = {
    {"none", RopeScaling::kNone}, {"linear", RopeScaling::kLinear}, {"llama3", RopeScaling::kLlama3}};

// No family has these together, so that others could not load the result.
void check_experts(const SectionReader& section, SpecReading& reading, const ModelSpec& model) {
  const ExpertSpec& experts = model.experts;
  if (experts.per_token > experts.count) {
    reading.fail(
        section.origin("experts_per_token"),
        fmt::format("experts_per_token {} is above the {} experts", experts.per_token, experts.count),
        fmt::format("write {} or less", experts.count));
  } else if (model.qkv_bias) {
    reading.fail(section.origin("qkv_bias"), "no family of models has both qkv_bias and experts",
                 "keep one of them: others could not load the model");
  } else if (!experts.normalize && !model.head_norms) {
    reading.fail(section.origin("normalize_experts"),
                 "experts whose weights are not normalized are a Qwen 3's, and this model has no head_norms",
                 "write normalize_experts = true, or head_norms = true");
  }
}

void check_model(const SectionReader& section, SpecReading& reading, const Architecture& architecture,
                 const ModelSpec& model) {
  const struct {
    const char* key;
    int value;
  } sizes[] = {{"layers", model.layers},     {"hidden", model.hidden}, {"heads", model.heads},
               {"kv_heads", model.kv_heads}, {"ffn", model.ffn},       {"vocab", model.vocab}};
  for (const auto& size : sizes) {
    if (size.value > 0) continue;
    reading.fail(section.origin(), fmt::format("[model] has no {}", size.key),
                 fmt::format("write every size, or preset = \"{}\" or another, or init = a folder with a "
                             "config.json",
                             architecture.preset));
    return;
  }
  if (model.head_size % 2 != 0) {
    reading.fail(section.origin("head_size"), fmt::format("head_size {} is odd", model.head_size),
                 "write an even one: rotary positions turn pairs");
  } else if (model.head_size == 0 &&
             (model.hidden % model.heads != 0 || (model.hidden / model.heads) % 2 != 0)) {
    reading.fail(section.origin("hidden"),
                 fmt::format("hidden {} over {} heads gives no even head size", model.hidden, model.heads),
                 fmt::format("make hidden a multiple of {}", 2 * model.heads));
  }
  if (model.heads % model.kv_heads != 0) {
    reading.fail(section.origin("kv_heads"),
                 fmt::format("{} heads cannot share {} kv_heads evenly", model.heads, model.kv_heads),
                 "make heads a multiple of kv_heads");
  }
  const std::string_view traits[] = {model.qkv_bias ? "qkv_bias" : "", model.head_norms ? "head_norms" : "",
                                     model.window > 0 ? "window" : ""};
  if (model.experts.wanted()) check_experts(section, reading, model);
  std::string_view first;
  for (const std::string_view trait : traits) {
    if (trait.empty()) continue;
    if (!first.empty()) {
      reading.fail(section.origin(trait), fmt::format("no family of models has both {} and {}", first, trait),
                   "keep one of them: others could not load the model");
    }
    first = trait;
  }
}

void check_rope(const SectionReader& section, SpecReading& reading, const RotaryScaling& rope) {
  for (const char* key : {"rope_factor", "rope_low_factor", "rope_high_factor", "rope_original_length"}) {
    const bool of_linear = std::string_view(key) == "rope_factor";
    if (!section.has(key) || rope.kind == RopeScaling::kLlama3) continue;
    if (rope.kind == RopeScaling::kLinear && of_linear) continue;
    reading.fail(section.origin(key), fmt::format("rope_scaling = \"{}\" has no {}", name_of(rope.kind), key),
                 of_linear ? "write rope_scaling = \"linear\" or \"llama3\", or remove the key"
                           : "write rope_scaling = \"llama3\", or remove the key");
  }
  if (rope.kind == RopeScaling::kLlama3 && rope.high_factor <= rope.low_factor) {
    reading.fail(
        section.origin("rope_high_factor"),
        fmt::format("rope_high_factor {} is not above rope_low_factor {}", rope.high_factor, rope.low_factor),
        "raise the one, or lower the other");
  }
}

// Refuses keys of other architectures.
void refuse_others_keys(const SectionReader& section, SpecReading& reading,
                        const Architecture& architecture) {
  for (const Architecture& other : kArchitectures) {
    for (const std::string_view key : other.keys) {
      if (!key.empty() && section.has(key) && !architecture.has(key))
        reading.fail(section.origin(key), fmt::format("{} has no {}", architecture.called, key),
                     "remove the key");
    }
  }
}

void refuse_without_experts(const SectionReader& section, SpecReading& reading, const ModelSpec& model) {
  if (model.experts.wanted()) return;
  for (const char* key : {"experts_per_token", "normalize_experts", "balance"}) {
    if (section.has(key))
      reading.fail(section.origin(key), fmt::format("a model without experts has no {}", key),
                   "write experts, or remove the key");
  }
}

void read_rope(SectionReader& section, RotaryScaling& rope) {
  section.choice("rope_scaling", kScalings, rope.kind);
  section.number("rope_factor", 1.0, 1e6, rope.factor);
  section.number("rope_low_factor", 1e-3, 1e6, rope.low_factor);
  section.number("rope_high_factor", 1e-3, 1e6, rope.high_factor);
  section.integer("rope_original_length", 1, 1 << 24, rope.original_length);
}

}  // namespace

const char* name_of(RopeScaling scaling) {
  return kScalings[static_cast<int>(scaling)].name;
}

void read_model(const TomlValue& document, SpecReading& reading, const std::string& trainer,
                ModelSpec& model) {
  SectionReader section(document, "model", reading);
  section.text("preset", model.preset, 64);
  if (!model.preset.empty()) {
    if (const ModelSpec* preset = find_preset(model.preset)) {
      model = *preset;
    } else {
      reading.fail(section.origin("preset"),
                   fmt::format("there is no preset \"{}\"", printable(model.preset)),
                   fmt::format("write one of {}", fmt::join(preset_names(), ", ")));
    }
  }
  section.integer("layers", 1, 1024, model.layers);
  section.integer("hidden", 2, 1 << 20, model.hidden);
  section.integer("heads", 1, 1 << 14, model.heads);
  section.integer("kv_heads", 1, 1 << 14, model.kv_heads);
  section.integer("ffn", 1, 1 << 22, model.ffn);
  section.integer("vocab", 2, 1 << 22, model.vocab);
  section.number("rope_theta", 1.0, 1e12, model.rope_theta);
  section.number("norm_epsilon", 1e-12, 1e-1, model.norm_epsilon);
  section.integer("max_positions", 1, 1 << 24, model.max_positions);
  section.boolean("next_sentence", model.next_sentence);
  section.boolean("tied_embeddings", model.tied_embeddings);
  section.integer("head_size", 2, 1024, model.head_size);
  section.boolean("qkv_bias", model.qkv_bias);
  section.boolean("head_norms", model.head_norms);
  section.integer("window", 0, 1 << 24, model.window);
  read_rope(section, model.rope);
  section.integer("experts", 2, 1024, model.experts.count);
  section.integer("experts_per_token", 1, 1024, model.experts.per_token);
  section.boolean("normalize_experts", model.experts.normalize);
  section.number("balance", 0.0, 10.0, model.experts.balance);
  section.text("init", model.init);
  section.finish();
  refuse_without_experts(section, reading, model);
  const Architecture& architecture = architecture_of(trainer);
  refuse_others_keys(section, reading, architecture);
  if (!architecture.has("kv_heads")) model.kv_heads = model.heads;
  if (!architecture.causal && model.max_positions == 0)
    model.max_positions = model.next_sentence ? kBertPositions : kRobertaPositions;
  if (!section.present()) {
    reading.fail(document.origin, "the trainer has no [model]",
                 fmt::format("write [model] preset = \"{}\"", architecture.preset));
  } else if (!reading.error) {
    check_model(section, reading, architecture, model);
    check_rope(section, reading, model.rope);
  }
}

}  // namespace shardrun::spec
