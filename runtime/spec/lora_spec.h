// LoraSpec: [lora] of a job spec, and how it is read. The job's weights stay as they are, and beside each named matrix W of a
// layer two narrow ones are trained: y = W·x + s·B·(A·x).
//
// Thread rule: plain values; read_lora() is pure but for `reading`.
// Source: Hu et al. 2021 (LoRA), Kalajdzievski 2023 (rsLoRA); names and scales are PEFT's.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardrun::spec {

struct JobSpec;
struct SpecReading;
struct TomlValue;

// A layer's matrices, in the order in which they lie in a layer.
enum class LoraMatrix { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kLoraMatrices = 7;
// Returns its name in a job spec and in adapter_config.json, e.g. "q_proj".
const char* name_of(LoraMatrix matrix);

struct LoraSpec {                    // [lora]
  int rank = 0;                      // rows of A; 0: all weights are trained
  double alpha = 0.0;                // what the scale s begins with; where nobody says, the rank
  bool rslora = false;               // whether s is alpha / √rank instead of alpha / rank
  std::vector<LoraMatrix> matrices;  // ascending, each once

  bool wanted() const { return rank > 0; }
  bool has(LoraMatrix matrix) const {
    return std::find(matrices.begin(), matrices.end(), matrix) != matrices.end();
  }
  double scale() const { return alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : rank); }
  friend bool operator==(const LoraSpec&, const LoraSpec&) = default;
};

// Reads [lora] of a job whose other sections are read, and refuses what it cannot stand beside.
void read_lora(const TomlValue& document, SpecReading& reading, JobSpec& spec);

}  // namespace shardrun::spec
