#include "launcher/forecast/knobs.h"

#include <cmath>

namespace shardrun::launcher {
namespace {

constexpr double kMakingSpread = 0.06;  // spread of how well stacks use the same hardware

constexpr std::array<Knob, kCommonKnobs> kTable = {{
    {"gemm_ampere", 0.75, 0.10},
    {"gemm_hopper", 0.70, 0.10},
    {"gemm_trainium", 0.55, 0.30},
    {"narrow", 64.0, 0.7},
    {"attention", 1.0, 0.15},
    {"elementwise", 1.5, 0.5},
    {"fused", 0.5, 0.3},
    {"fp8", 0.75, 0.2},
    {"network", 0.75, 0.15},
    {"link", 0.8, 0.15},
    {"straggle", 0.006, 0.5},
    {"host_seconds", 0.05, 0.5},
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
  return index < kCommonKnobs ? kTable[static_cast<size_t>(index)]
                              : kMaking[static_cast<size_t>(index - kCommonKnobs)];
}

Constants constants_of(const Knobs& logarithms) {
  Constants constants;
  const auto common = places(constants);
  for (size_t i = 0; i < common.size(); ++i) *common[i] = std::exp(logarithms[i]);
  for (size_t i = 0; i < kStacks; ++i) constants.making[i] = std::exp(logarithms[kCommonKnobs + i]);
  return constants;
}

Knobs knobs_of(const Constants& constants) {
  Knobs logarithms{};
  const auto common = places(constants);
  for (size_t i = 0; i < common.size(); ++i) logarithms[i] = std::log(*common[i]);
  for (size_t i = 0; i < kStacks; ++i) logarithms[kCommonKnobs + i] = std::log(constants.making[i]);
  return logarithms;
}

Spreads spreads_before() {
  Spreads spreads{.publication = 0.02, .alike = 0.05, .alike_on_trainium = 0.05, .noise = 0.02};
  for (size_t i = 0; i < kCommonKnobs; ++i) spreads.between[i] = kTable[i].spread;
  return spreads;
}

const Spreads& fitted_spreads() {
  static constexpr Spreads kFitted = {.between = {0.0447, 0.0459, 0.1709, 0.8260, 0.0900, 0.3996, 0.3098,
                                                  0.0812, 0.4870, 0.5335, 0.3808, 0.3553},
                                      .publication = 0.01440,
                                      .alike = 0.02898,
                                      .alike_on_trainium = 0.10008,
                                      .noise = 0.01696};
  return kFitted;
}

}  // namespace shardrun::launcher
