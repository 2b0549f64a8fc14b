// AttachedRanks: the ranks of an attempt whose conductor has died, which this one has taken over.
//
// They are no children of ours, and the command that started them is gone or somebody else's. What is known of them comes over
// the watch, to which their supervisors find by themselves, and from the accounts that they leave; what they are told goes over
// the watch.
//
// Thread rule: one thread calls.
#pragma once

#include "launcher/schedule/scheduler.h"
#include "launcher/watch/watch.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {

// Returns how long a supervisor may take to find its new conductor: its lease must have ended first.
double return_seconds(const spec::FaultToleranceSpec& faults);

// Waits for the ranks of step.attempt, with the contract of Scheduler::run (launcher/schedule/scheduler.h) but for this: a
// supervisor that is not heard any more is not waited for longer than it takes one to return and end its program; its
// conductor_timeout ends it. The outcome has no exits: the ranks' own accounts are all there is.
StepOutcome wait_for_ranks(Watch& watch, const StepRequest& step, const record::RunDir& run);

}  // namespace shardrun::launcher
