// What the planner is asked for a job on a machine: the machine as predictions know it, the model, the program's stack.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/cluster/load_job.h"
#include "launcher/forecast/search.h"
#include "launcher/foresight/forecast.h"

namespace shardrun::launcher {

// Errors: kInvalid for a machine or a stack that nobody knows, for a price that the table lacks, and, of the built-in
// trainer, for a job that trains on CPUs and for accelerators that it does not compute on.
base::Result<Question> question_of(const PlanOptions& options, const LoadedSpec& loaded,
                                   const std::string& machine);

// The layout that the spec asks for; nullopt where its mesh or batch cannot be solved on the machine.
std::optional<Layout> layout_as_written(const spec::JobSpec& spec, const Question& question);

// Whether the built-in trainer's own plan of a layout fits the machine, and the bytes of an accelerator that it takes.
struct OwnMemory {
  int64_t bytes = 0;
  bool fits = false;
};
OwnMemory own_memory(const spec::JobSpec& spec, const Question& question, const Layout& layout);

// Whether the built-in trainer refuses what a layout has.
bool is_refused(const spec::JobSpec& spec, const Question& question, const Layout& layout);

}  // namespace shardrun::launcher
