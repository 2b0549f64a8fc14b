// The angles of rotary positions, as the table that the op `rope` takes.
//
// Thread rule: pure functions.
// Source: Su et al. 2021, in the half-rotation layout of LlamaForCausalLM; scalings: runtime/spec/model_spec.h.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/spec/model_spec.h"

namespace shardrun::plan {

// Returns (length, D): of each position the cos of D/2 angles, then their sin. angle(t, i) = t · frequency i, which is
// theta^(-2i/D) as the scaling has it.
std::vector<float> rope_table(int64_t length, int64_t D, double theta,
                              const spec::RotaryScaling& scaling = {});

}  // namespace shardrun::plan
