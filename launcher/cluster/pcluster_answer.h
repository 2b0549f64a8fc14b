// The answers of the pcluster command, as values and in plain words.
//
// The JSON is that of the API of ParallelCluster 3 (pcluster/api/openapi/openapi.yaml): members that we do not know are
// ignored, and those that we read may all be missing. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

struct ClusterState {
  std::string name, region, version;
  std::string status;  // CREATE_IN_PROGRESS, …
  std::string stack_status, fleet_status;
  std::string created, updated;
  std::string head_type, head_state, head_address;  // the public address where there is one
  std::vector<std::string> failures;                // "code: reason"
  std::vector<std::string> notes;                   // from validation, "WARNING: …"

  bool in_progress() const { return status.ends_with("_IN_PROGRESS"); }
  bool failed() const { return status.ends_with("_FAILED"); }
};

// Parses the answer of create, describe and delete. Errors: kIo when it is no such answer.
base::Result<ClusterState> parse_cluster_state(std::string_view json);
struct ClusterList {
  std::vector<ClusterState> clusters;
  std::string next_token;  // where the rest continues; empty: that was all
};
base::Result<ClusterList> parse_cluster_list(std::string_view json);

// Turns what a pcluster that ended with an error printed into an error for people: expired credentials, an unknown
// cluster, a configuration that was refused (with what each validator says), anything else in pcluster's own words.
base::Error explain_refusal(std::string_view json, std::string_view cluster);

// Print one cluster, a line for each fact, or many clusters, a line for each.
std::string cluster_text(const ClusterState& state);
std::string cluster_table(const std::vector<ClusterState>& states);

// Returns "being made" for CREATE_IN_PROGRESS; an unknown status is returned as it is.
std::string status_words(const std::string& status);

}  // namespace shardrun::launcher
