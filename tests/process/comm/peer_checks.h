// What every collective must deliver, checked against sums made here one rank after the other.
//
// Thread rule: each check is called by all members of the communicator, in the same order.
#pragma once

#include <string>

#include "runtime/trainer/comm/communicator.h"

namespace shardrun::tests {

// Runs every collective at odd sizes with numbers that show the order of summation. Returns "" if all bits are
// right, else what was wrong first.
std::string check_collectives(comm::Communicator& communicator);

// Sends parts of all sizes, none among them, between all pairs of ranks, two operations at a time. Returns as check_collectives does.
std::string check_all_to_all(comm::Communicator& communicator);

// Gathers on one communicator while the other reduces, several rounds with three operations in flight on each.
// Returns as check_collectives does.
std::string check_overlap(comm::Communicator& gathers, comm::Communicator& sums);

}  // namespace shardrun::tests
