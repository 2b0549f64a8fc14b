// Rules of the gate: judge from what the nodes found out before the first step which of them cannot take part, and why.
//
//   run_directory  a node whose rank refused to start does not see it
//   silent         a node that left no account: it did not start, or hangs
//   disk           less free than the checkpoints to come need
//   provider       the comm plugin, or the provider that the job asks for, does not open
//   gpu            fewer than asked for, or one that its driver calls faulty
//   network        others lost it, or: the all-reduce over all ranks has less than kSlowShare of its usual bandwidth,
//                  and so has the better of the node's two pairs against the median node. Where nothing is known of the
//                  past, the share is kBrokenShare: only what is plainly broken. A slow network in which no node
//                  stands out is a warning.
// Clocks that certainly differ by more than kClockLimitSeconds, and harmful variables, are warnings: training does
// not depend on them.
//
// Thread rule: pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/preflight.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

inline constexpr double kBrokenShare = 0.25;
inline constexpr double kClockLimitSeconds = 1.0;

struct GateFacts {
  record::RunDir run;
  std::vector<std::string> nodes;  // those that were looked at
  int ranks_per_node = 1;
  int gpus_per_node = 0;                           // as many as the job asks for
  std::map<std::string, record::NodeFacts> found;  // by node; without those that left no account
  std::optional<record::Measurement> measured;
  std::optional<double> usual_bytes_per_second;
  std::vector<record::RankExit> exits;  // as the scheduler saw them
  std::string scheduler_words;          // about a fault of its own
};

struct GateJudgement {
  std::vector<record::ExcludedNode> bad;  // in the order of the nodes, each once
  std::vector<std::string> warnings;
};

GateJudgement judge_nodes(const GateFacts& facts);

// Returns whether what was measured may count as usual from now on.
bool is_usual(const GateFacts& facts, const GateJudgement& judgement);

}  // namespace shardrun::launcher
