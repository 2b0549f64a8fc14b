// The lines of [program] setup, which a rank's shell runs before its program.
//
// Thread rule: pure function.
#pragma once

#include <string>
#include <vector>

namespace shardrun::rank {

// Returns the argument vector of a bash that runs the lines one after the other in one shell, and then becomes `command` with
// what they exported. Lines and command are words of their own, so that neither is spliced into a script. A line that fails is
// named on stderr and ends the rank with 2. Environment Modules' function `module` is there where the node has it.
// Returns `command` itself where there are no lines.
std::vector<std::string> behind_setup(const std::vector<std::string>& lines,
                                      const std::vector<std::string>& command);

}  // namespace shardrun::rank
