// Names of nodes as Slurm writes many of them: "q1-dy-p5-[1-64,70],head".
//
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>

namespace shardrun::launcher {

// Returns one expression for all names. Names that differ only in the number at their end, written as wide, share a bracket, in
// ascending order; the others stand as they are. An argument of a program may have 128 KiB: that many names as a list are some
// 8,000, as an expression any number that has an order.
std::string node_ranges(std::span<const std::string> names);

}  // namespace shardrun::launcher
