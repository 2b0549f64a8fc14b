#include "launcher/forecast/knobs.h"

#include <cmath>

namespace shardrun::launcher {
namespace {

constexpr double kMakingSpread = 0.06;  // spread of how well stacks use the same hardware

constexpr int kCommon = kKnobs - kStacks;
constexpr std::array<Knob, kCommon> kTable = {{
    {"gemm_ampere", 0.75, 0.10, 0.03},
    {"gemm_hopper", 0.70, 0.10, 0.03},
    {"gemm_trainium", 0.55, 0.30, 0.1},
    {"narrow", 64.0, 0.7, 0.3},
    {"attention", 1.0, 0.15, 0.1},
    {"elementwise", 1.5, 0.5, 0.55},
    {"fused", 0.5, 0.3, 0.15},
    {"fp8", 0.75, 0.2, 0.08},
    {"network", 0.75, 0.15, 0.2},
    {"link", 0.8, 0.15, 0.2},
    {"straggle", 0.006, 0.5, 0.5},
    {"host_seconds", 0.05, 0.5, 0.4},
}};

// The places of the common knobs, in the order of the table.
template <typename Those>
auto places(Those& constants) {
  return std::array{&constants.gemm[0], &constants.gemm[1],   &constants.gemm[2],
                    &constants.narrow,  &constants.attention, &constants.elementwise,
                    &constants.fused,   &constants.fp8,       &constants.network,
                    &constants.link,    &constants.straggle,  &constants.host_seconds};
}

}  // namespace

const Knob& knob(int index) {
  static const std::array<Knob, kStacks> kMaking = [] {
    std::array<Knob, kStacks> all;
    for (int i = 0; i < kStacks; ++i)
      all[static_cast<size_t>(i)] = {traits(static_cast<Stack>(i)).name, 1.0, kMakingSpread};
    return all;
  }();
  return index < kCommon ? kTable[static_cast<size_t>(index)] : kMaking[static_cast<size_t>(index - kCommon)];
}

Constants constants_of(const Knobs& logarithms) {
  Constants constants;
  const auto common = places(constants);
  for (size_t i = 0; i < common.size(); ++i) *common[i] = std::exp(logarithms[i]);
  for (size_t i = 0; i < kStacks; ++i) constants.making[i] = std::exp(logarithms[kCommon + i]);
  return constants;
}

Knobs knobs_of(const Constants& constants) {
  Knobs logarithms{};
  const auto common = places(constants);
  for (size_t i = 0; i < common.size(); ++i) logarithms[i] = std::log(*common[i]);
  for (size_t i = 0; i < kStacks; ++i) logarithms[kCommon + i] = std::log(constants.making[i]);
  return logarithms;
}

}  // namespace shardrun::launcher
