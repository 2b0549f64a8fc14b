// Wrapping: which neighbouring blocks are a unit, whose parameters one all-gather brings and whose gradients one reduce-scatter
// sums. Each block stays cut as it is (shard_layout.h), so that who owns what, checkpoints and bits do not depend on it.
//
// A rank's shards of a unit lie one behind the other in its flat shard; so does every rank's part of the gathered unit, which is
// thus in the order of ranks and not of blocks:
//
//   blocks a and b on two ranks:   a0 b0 | a1 b1      block a for whoever computes: a0 a1
//
// Thread rule: plain values and pure functions.
#pragma once

#include <vector>

#include "runtime/plan/shard_layout.h"

namespace shardrun::plan {

struct Wrapping {
  // Blocks [begins[u], begins[u + 1]) are unit u; empty: each block is a unit.
  std::vector<int> begins;

  int units(int blocks) const { return begins.empty() ? blocks : static_cast<int>(begins.size()) - 1; }
  int begin(int unit) const { return begins.empty() ? unit : begins[unit]; }
  int end(int unit) const { return begins.empty() ? unit + 1 : begins[unit + 1]; }
};

// Blocks [first, last).
struct BlockRange {
  int first = 0, last = 0;
};

// Units of `together` of the blocks of each of these ranges, of which the last unit may have fewer; each other block is its own.
Wrapping wrap_blocks(int blocks, const std::vector<BlockRange>& ranges, int together);

// The layout whose blocks are the units. What is padding inside one of several blocks is no padding of the unit.
ShardLayout layout_of_units(const ShardLayout& layout, const Wrapping& wrapping);

// The visits of units that a model's visits of blocks are, and the number of the first one in each.
struct UnitVisits {
  std::vector<int> units, numbers;
};
UnitVisits unit_visits(const Wrapping& wrapping, const std::vector<int>& visits);

}  // namespace shardrun::plan
