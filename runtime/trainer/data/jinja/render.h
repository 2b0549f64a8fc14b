// Carries a chat template out.
//
// What it may use: the variables, true, false, none, `loop`, namespace(), range() and raise_exception(); the filters, tests and methods
// that operations.cpp lists. A name that is none of these is refused where it is used, so a branch that no conversation
// reaches (tools, documents) does no harm. A run is bounded: kMostSteps operations and kMostBytes of text, all texts on the way counted.
//
// Source: Jinja 3.1's sandbox as transformers sets it up for apply_chat_template; but strftime_now is not defined, so a template takes
// its own date, and what is rendered does not depend on the day.
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/trainer/data/jinja/syntax.h"

namespace shardrun::data::jinja {

inline constexpr int64_t kMostSteps = 1'000'000, kMostBytes = int64_t{64} << 20;

// kInvalid: "line 3: what; mend", or for raise_exception() "line 3: the template refuses this: its words".
Result<Text> render(const Template& parsed, const Dict& variables);

}  // namespace shardrun::data::jinja
