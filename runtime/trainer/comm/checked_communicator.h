// A communicator whose results are checked: what arrived is what was sent, and sums are sums.
//
// Links, memory and processors change numbers without an error, rarely. Beside each operation a second, small one carries what
// its result is held against:
//   all-gather, broadcast   a CRC-32C of each rank's bytes: every flipped bit is found, and the rank that sent it named
//   reduce-scatter          for each part the sum of its elements and of their sizes, in fp64: a result that is further from
//                           it than rounding can bring it is wrong
//   all-reduce              the same, and a CRC-32C of the result, which must be everyone's
// An error is kCorrupt and, as after any error of wait(), only destruction is allowed.
//
// For buffers of the host. It reads every byte once more and doubles the number of operations.
// Thread rule: as Communicator.
#pragma once

#include <memory>
#include <string>

#include "runtime/trainer/comm/communicator.h"

namespace shardrun::comm {

// `inner` outlives it; nobody else calls it meanwhile. `name` is for messages: "gather".
std::unique_ptr<Communicator> checked(Communicator& inner, std::string name);

}  // namespace shardrun::comm
