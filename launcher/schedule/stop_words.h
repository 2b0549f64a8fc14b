// What a person who asks a run to stop is told at once, on stderr: stopping may take as long as the ranks need to save.
//
// Thread rule: free functions.
#pragma once

#include "launcher/schedule/scheduler.h"

namespace shardrun::launcher {

// Tells what happens now, and what a second request does. `signal` asked.
void tell_of_stop(const StepRequest& request, int signal);
// Tells that a second request ends the ranks at once.
void tell_of_second_stop();

}  // namespace shardrun::launcher
