// The names inside a run directory; docs/formats.md describes each file. Pure string building.
//
//   <logging.directory>/<name>/<id>/
//     job.toml plan.json submit.sh record.json results.json metrics.jsonl
//     attempt_<n>/rank_<g>.out .err     what the rank wrote, byte for byte; long output goes on in rank_<g>.<k>.out .err
//     attempt_<n>/rank_<g>.times        when it wrote what (output_marks.h)
//     attempt_<n>/<node>.log            what shardrun says there: "<utc time> <node>:<global rank> shardrun: <line>"
//     attempt_<n>/<node>.exits          how the ranks of a node ended (exit_lines.h)
//     epoch events.jsonl
//     attempt_<n>/plan.json             what the ranks of the attempt read: plan.json, or that of fewer nodes
//     attempt_<n>/watch.json            where the conductor listens for heartbeats (0600)
//     attempt_<n>/summary.json          what a finished or stopped trainer reports (TrainingMetrics)
//     attempt_<n>/preflight_<p>/        what the nodes found before the first step (preflight.h)
//     checkpoints/
#pragma once

#include <string>

namespace shardrun::record {

// What others may do with what a run leaves: nothing, whatever the umask. Who wants to show a run opens it afterwards.
inline constexpr unsigned kFileMode = 0600;
inline constexpr unsigned kFolderMode = 0700;

struct RunDir {
  std::string root;  // absolute

  std::string job_toml() const { return root + "/job.toml"; }
  std::string plan_json() const { return root + "/plan.json"; }
  std::string submit_sh() const { return root + "/submit.sh"; }
  std::string record_json() const { return root + "/record.json"; }
  std::string results_json() const { return root + "/results.json"; }
  std::string epoch() const { return root + "/epoch"; }
  std::string events_jsonl() const { return root + "/events.jsonl"; }
  std::string metrics_jsonl() const { return root + "/metrics.jsonl"; }
  std::string checkpoints() const { return root + "/checkpoints"; }
  std::string code() const { return root + "/code"; }
  std::string tensorboard() const { return root + "/tensorboard"; }
  std::string profile() const { return root + "/profile"; }
  std::string attempt(int n) const { return root + "/attempt_" + std::to_string(n); }
  std::string attempt_plan(int n) const { return attempt(n) + "/plan.json"; }
  std::string node_log(int n, const std::string& node) const { return attempt(n) + "/" + node + ".log"; }
  std::string node_exits(int n, const std::string& node) const { return attempt(n) + "/" + node + ".exits"; }
  std::string node_phases(int n, const std::string& node) const {
    return attempt(n) + "/" + node + ".phases";
  }
  std::string launch_trace(int n) const {
    return profile() + "/attempt_" + std::to_string(n) + "_launch.json";
  }
  std::string rank_out(int n, int rank, int segment = 0) const {
    return rank_file(n, rank, segment_name(segment) + ".out");
  }
  std::string rank_err(int n, int rank, int segment = 0) const {
    return rank_file(n, rank, segment_name(segment) + ".err");
  }
  std::string rank_times(int n, int rank, int segment = 0) const {
    return rank_file(n, rank, segment_name(segment) + ".times");
  }
  std::string rank_alive(int n, int rank) const { return rank_file(n, rank, ".alive"); }
  std::string watch_json(int n) const { return attempt(n) + "/watch.json"; }
  // The folder of pass `pass` of the preflight before attempt n: the first one is 0, each later one goes without some nodes.
  std::string preflight(int n, int pass) const { return attempt(n) + "/preflight_" + std::to_string(pass); }
  std::string summary_json(int n) const { return attempt(n) + "/summary.json"; }
  // What is said of a node that does not see it, or may not write there; a rank there ends with kExitRefused and leaves no file.
  std::string unseen_by(const std::string& node) const {
    return "node " + node + " does not see the run directory " + root +
           " or cannot write into it; put [logging] directory on a file system that all nodes share and "
           "write";
  }

 private:
  static std::string segment_name(int segment) { return segment == 0 ? "" : "." + std::to_string(segment); }
  std::string rank_file(int n, int rank, const std::string& suffix) const {
    return attempt(n) + "/rank_" + std::to_string(rank) + suffix;
  }
};

}  // namespace shardrun::record
