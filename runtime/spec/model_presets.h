// The named model sizes that [model] preset = "…" knows.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/spec/model_spec.h"

namespace shardrun::spec {

// Returns the sizes of the preset, or nullptr. Llama-2 sizes: Touvron et al. 2023 and the published config.json
// files; those of the later families: their published config.json files. BERT sizes: Devlin et al. 2019; bert-tiny: Turc
// et al. 2019.
const ModelSpec* find_preset(std::string_view name);
std::vector<std::string> preset_names();

}  // namespace shardrun::spec
