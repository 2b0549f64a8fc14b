// Module: the trainer and the tools, which lie in lib/shardrun/libshardrun_runtime.so and are loaded where they are needed.
//
// A supervisor of a command needs neither, and what they are linked with takes longer to load than all that a supervisor
// does (docs/decisions/0112). The library and the program come from one build: `build` says so on both sides.
//
// Thread rule: load once, from the only thread of the process.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun {

// What both sides must agree on: values of these types are handed over as they are.
struct ModuleBuild {
  std::string_view version;
  size_t env = sizeof(contract::RankEnv), spec = sizeof(spec::JobSpec), plan = sizeof(record::LaunchPlan);
  bool operator==(const ModuleBuild&) const = default;
};

// What the library exports as `shardrun_runtime`.
struct Module {
  ModuleBuild build;
  int (*run_trainer)(const contract::RankEnv&, const spec::JobSpec&, const record::LaunchPlan&,
                     contract::ProgressPage&) = nullptr;
  // Returns the tool's exit code; that of bad input, having said so, when there is none of this name.
  int (*run_tool)(std::string_view name, std::span<char* const> arguments) = nullptr;
};

// Loads the library that lies in ../lib/shardrun beside the program's own folder. kNotFound or kUnsupported, in the loader's
// words, when it or a library of its own is not there; kUnsupported when it is of another build; kRefused when others can write it
// (runtime/base/trust.h).
base::Result<const Module*> load_module();

}  // namespace shardrun
