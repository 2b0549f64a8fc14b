// How the ranks of an attempt ended, as their supervisors say: a line each in attempt_<n>/<node>.exits (docs/formats.md).
//
// A node's supervisors append to one file, each with one O_APPEND write. A line is whole or it is no JSON: one that a full disk or a
// kill has cut off is passed over, also where the next one follows it without a newline.
//
// Thread rule: free functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::record {

// kIo, also when the disk has taken a part of the line.
Result<void> append_rank_exit(const RunDir& run, int attempt, const RankExit& exit);

// Return what is told by now, by global rank; where a rank tells twice, the later word. The first reads every node's file, and
// attempt_<n>/rank_<g>.exit.json of runs from before there were such files; the second those of some nodes.
std::map<int, RankExit> read_rank_exits(const RunDir& run, int attempt);
std::map<int, RankExit> read_rank_exits(const RunDir& run, int attempt, const std::set<std::string>& nodes);
std::map<int, RankExit> parse_rank_exits(std::string_view text);

}  // namespace shardrun::record
