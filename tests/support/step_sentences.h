// The events of a step as sentences, so that a test can say a schedule in words.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/step.h"

namespace shardrun::tests {

inline std::vector<plan::StepEvent> events_of(plan::StepPlan plan) {
  std::vector<plan::StepEvent> events;
  while (const auto event = plan.next()) events.push_back(*event);
  return events;
}

// "gather 0 into slot 1"; a buffer that is the rank's own shard is not named.
inline std::string sentence(const plan::StepEvent& e) {
  using Kind = plan::StepEvent::Kind;
  const auto named = [](const char* before, const char* buffer, int number) {
    return number < 0 ? std::string() : fmt::format(" {} {} {}", before, buffer, number);
  };
  switch (e.kind) {
    case Kind::kGather:
      return fmt::format("gather {}", e.block) + named("into", "slot", e.slot);
    case Kind::kAwaitGather:
      return fmt::format("await {}", e.block) + named("in", "slot", e.slot);
    case Kind::kForward:
      return fmt::format("forward {} of {}", e.visit, e.block) + named("from", "slot", e.slot);
    case Kind::kBackward:
      return fmt::format("backward {} of {}", e.visit, e.block) + named("from", "slot", e.slot) +
             (e.adds ? " adds" : "") + named("into", "gradient", e.gradient);
    case Kind::kReduce:
      return fmt::format("reduce {}", e.block) + named("from", "gradient", e.gradient) +
             named("into", "scratch", e.scratch);
    case Kind::kAwaitReduce:
      return fmt::format("await {}", e.block) + named("in", "gradient", e.gradient);
    case Kind::kAdd:
      return fmt::format("add {}", e.block) + named("from", "scratch", e.scratch);
    case Kind::kSumReplicas:
      return fmt::format("sum {} over replicas", e.block);
    case Kind::kAwaitReplicas:
      return fmt::format("await {} of replicas", e.block);
    case Kind::kTurnEnds:
      return "turn ends";
  }
  return "";
}

inline std::vector<std::string> sentences(const std::vector<plan::StepEvent>& events) {
  std::vector<std::string> words;
  for (const plan::StepEvent& event : events) words.push_back(sentence(event));
  return words;
}

}  // namespace shardrun::tests
