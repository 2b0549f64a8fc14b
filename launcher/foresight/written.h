// Whether the layout that a spec asks for fits, how fast it is then, and what would mend it where it does not.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>

#include "launcher/foresight/forecast.h"

namespace shardrun::launcher {

// Returns nullopt where the spec's mesh or batch cannot be solved on the machine. `own`: of the built-in trainer, whose plan
// says what it holds.
std::optional<Written> written_layout(const spec::JobSpec& spec, bool own, const Question& question,
                                      const Belief& belief);

}  // namespace shardrun::launcher
