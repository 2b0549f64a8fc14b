#include "runtime/spec/lora_spec.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/spec/architecture.h"
#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {
namespace {

constexpr const char* kNames[kLoraMatrices] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};

void read_matrices(SectionReader& section, SpecReading& reading, LoraSpec& lora) {
  std::vector<std::string> names;
  section.texts("matrices", names);
  if (!section.has("matrices")) names = {"q_proj", "v_proj"};  // as PEFT does for a Llama
  bool wanted[kLoraMatrices] = {};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = std::find(std::begin(kNames), std::end(kNames), names[i]);
    const std::string origin = origin_of(reading.origins, fmt::format("lora.matrices[{}]", i));
    if (found == std::end(kNames)) {
      reading.fail(origin, fmt::format("a layer has no matrix \"{}\"", printable(names[i])),
                   fmt::format("write some of {}", fmt::join(kNames, ", ")));
      return;
    }
    bool& one = wanted[found - std::begin(kNames)];
    if (one) {
      reading.fail(origin, fmt::format("{} stands there twice", names[i]), "remove one");
      return;
    }
    one = true;
  }
  for (int matrix = 0; matrix < kLoraMatrices; ++matrix)
    if (wanted[matrix]) lora.matrices.push_back(static_cast<LoraMatrix>(matrix));
  if (lora.matrices.empty())
    reading.fail(section.origin("matrices"), "matrices names none", "remove the key, or name some");
}

// Refuses what adapters cannot stand beside yet.
void check_together(const TomlValue& document, SpecReading& reading, const JobSpec& spec,
                    const SectionReader& section) {
  const auto origin = [&](const char* name, const char* key) {
    return SectionReader(document, name, reading).origin(key);
  };
  const Architecture& architecture = architecture_of(spec.program.trainer);
  if (!architecture.adapters) {
    reading.fail(section.origin(), fmt::format("{} has no adapters", architecture.called),
                 "remove [lora], or train a Llama");
  } else if (spec.model.init == "random") {
    reading.fail(section.origin(), "adapters stand beside weights, and this job has none to begin with",
                 "write [model] init = a checkpoint's folder, or remove [lora]");
  } else if (spec.sharding.tensor_parallel > 1) {
    reading.fail(origin("sharding", "tensor_parallel"), "adapters are not cut for a tensor group yet",
                 "remove it: frozen weights are sharded by [sharding] strategy");
  } else if (spec.model.experts.wanted()) {
    reading.fail(section.origin(), "a model with experts has no adapters yet", "remove [lora]");
  } else if (spec.resources.device == DeviceKind::kGpu) {
    reading.fail(origin("resources", "device"), "adapters are not trained on GPUs yet",
                 "write device = \"cpu\", or remove [lora]");
  } else if (spec.optimizer.kind == OptimizerKind::kLamb) {
    reading.fail(origin("optimizer", "kind"),
                 "lamb's rate follows a matrix's norm, and an adapter's begins at 0",
                 "write kind = \"adamw\"");
  }
}

}  // namespace

const char* name_of(LoraMatrix matrix) {
  return kNames[static_cast<int>(matrix)];
}

void read_lora(const TomlValue& document, SpecReading& reading, JobSpec& spec) {
  SectionReader section(document, "lora", reading);
  if (!section.present()) return;
  LoraSpec& lora = spec.lora;
  lora.rank = 8;  // PEFT's
  section.integer("rank", 1, 4096, lora.rank);
  lora.alpha = lora.rank;
  section.number("alpha", 1e-6, 1e6, lora.alpha);
  section.boolean("rslora", lora.rslora);
  read_matrices(section, reading, lora);
  section.finish();
  if (!reading.error) check_together(document, reading, spec, section);
}

}  // namespace shardrun::spec
