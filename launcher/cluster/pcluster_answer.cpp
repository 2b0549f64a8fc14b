#include "launcher/cluster/pcluster_answer.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::member;
using base::Result;
using nlohmann::json;

constexpr size_t kLongestWords = 2000;

// Returns a string member made fit for a terminal; empty where there is none.
std::string text_of(const json& object, const char* key) {
  return spec::printable(base::text_of(member(object, key)), kLongestWords);
}

// Returns "level: message" for each validator.
std::vector<std::string> messages_of(const json& list) {
  std::vector<std::string> messages;
  if (!list.is_array()) return messages;
  for (const json& one : list) {
    const std::string message = text_of(one, "message"), level = text_of(one, "level");
    if (!message.empty()) messages.push_back(level.empty() ? message : level + ": " + message);
  }
  return messages;
}

ClusterState state_of(const json& cluster) {
  ClusterState state;
  state.name = text_of(cluster, "clusterName");
  state.region = text_of(cluster, "region");
  state.version = text_of(cluster, "version");
  state.status = text_of(cluster, "clusterStatus");
  // Describe's answer has it under this name; the others write a small f.
  state.stack_status = text_of(cluster, "cloudFormationStackStatus");
  if (state.stack_status.empty()) state.stack_status = text_of(cluster, "cloudformationStackStatus");
  state.fleet_status = text_of(cluster, "computeFleetStatus");
  state.created = text_of(cluster, "creationTime");
  state.updated = text_of(cluster, "lastUpdatedTime");
  const json& head = member(cluster, "headNode");
  state.head_type = text_of(head, "instanceType");
  state.head_state = text_of(head, "state");
  state.head_address = text_of(head, "publicIpAddress");
  if (state.head_address.empty()) state.head_address = text_of(head, "privateIpAddress");
  if (const json& failures = member(cluster, "failures"); failures.is_array()) {
    for (const json& failure : failures) {
      const std::string code = text_of(failure, "failureCode"), reason = text_of(failure, "failureReason");
      if (!code.empty() || !reason.empty())
        state.failures.push_back(code.empty() || reason.empty() ? code + reason : code + ": " + reason);
    }
  }
  return state;
}

Error no_answer(std::string_view text) {
  return Error(Code::kIo, fmt::format("pcluster answered with no description of a cluster: \"{}\"; see "
                                      "~/.parallelcluster/pcluster-cli.log",
                                      spec::printable(text)));
}

bool has_any(const std::string& text, std::initializer_list<const char*> words) {
  const std::string lower = base::lower_case(text);
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return lower.find(word) != std::string::npos; });
}

}  // namespace

Result<ClusterState> parse_cluster_state(std::string_view text) {
  const json document = base::parse_json(text);
  const json& cluster = member(document, "cluster");
  ClusterState state = state_of(cluster.is_null() ? document : cluster);
  if (state.name.empty() || state.status.empty()) return no_answer(text);
  state.notes = messages_of(member(document, "validationMessages"));
  return state;
}

Result<ClusterList> parse_cluster_list(std::string_view text) {
  const json document = base::parse_json(text);
  const json& clusters = member(document, "clusters");
  if (!clusters.is_array()) return no_answer(text);
  ClusterList list;
  list.next_token = text_of(document, "nextToken");
  for (const json& cluster : clusters) list.clusters.push_back(state_of(cluster));
  return list;
}

Error explain_refusal(std::string_view text, std::string_view cluster) {
  const json document = base::parse_json(text);
  std::string message = text_of(document, "message");
  if (message.empty()) {
    return Error(Code::kIo, fmt::format("pcluster failed: \"{}\"; see ~/.parallelcluster/pcluster-cli.log",
                                        spec::printable(text, kLongestWords)));
  }
  if (has_any(message,
              {"expiredtoken", "token has expired", "security token included in the request is expired",
               "refresh has failed", "sso session"}))
    return Error(Code::kRefused, fmt::format("the AWS credentials have expired ({}); log in again, e.g. with "
                                             "`aws sso login`, and repeat",
                                             message));
  if (has_any(message, {"unable to locate credentials", "invalidclienttokenid", "authfailure"}))
    return Error(Code::kRefused,
                 fmt::format("no AWS credentials that are valid were found ({}); set AWS_PROFILE, or run "
                             "`aws configure`, and repeat",
                             message));
  if (has_any(message, {"not authorized", "accessdenied", "access denied"}))
    return Error(Code::kRefused,
                 fmt::format("AWS does not let these credentials do that: {}; ask for the permissions that "
                             "ParallelCluster's documentation lists",
                             message));
  if (has_any(message, {"does not exist or belongs"}))
    return Error(Code::kNotFound,
                 fmt::format("there is no cluster \"{}\" in this region; `shardrun cluster list` shows "
                             "those that are, --region looks elsewhere",
                             spec::printable(cluster)));
  if (has_any(message, {"already exists"}))
    return Error(Code::kRefused,
                 fmt::format("there is a cluster \"{}\" already; delete it, or choose another name",
                             spec::printable(cluster)));
  for (const char* key : {"configurationValidationErrors", "validationMessages"}) {
    for (const std::string& one : messages_of(member(document, key))) message += "\n  " + one;
  }
  return Error(Code::kRefused, "pcluster refuses: " + message);
}

std::string status_words(const std::string& status) {
  static constexpr const char* kWords[][2] = {{"CREATE_IN_PROGRESS", "being made"},
                                              {"CREATE_COMPLETE", "ready"},
                                              {"CREATE_FAILED", "could not be made"},
                                              {"UPDATE_IN_PROGRESS", "being changed"},
                                              {"UPDATE_COMPLETE", "ready"},
                                              {"UPDATE_FAILED", "could not be changed"},
                                              {"DELETE_IN_PROGRESS", "being deleted"},
                                              {"DELETE_COMPLETE", "deleted"},
                                              {"DELETE_FAILED", "could not be deleted"}};
  for (const auto& pair : kWords) {
    if (status == pair[0]) return pair[1];
  }
  return status;
}

std::string cluster_text(const ClusterState& state) {
  std::string out = fmt::format("cluster      {}\nstatus       {} ({})\n", state.name,
                                status_words(state.status), state.status);
  const auto fact = [&out](const char* name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<13}{}\n", name, value);
  };
  fact("region", state.region);
  fact("version", state.version);
  fact("created", state.created);
  fact("changed", state.updated);
  fact("fleet", state.fleet_status);
  if (!state.head_type.empty())
    fact("head node", fmt::format("{} {}{}{}", state.head_type, state.head_state,
                                  state.head_address.empty() ? "" : " at ", state.head_address));
  for (const std::string& failure : state.failures) fact("failure", failure);
  for (const std::string& note : state.notes) fact("note", note);
  return out;
}

std::string cluster_table(const std::vector<ClusterState>& states) {
  if (states.empty()) return "no clusters\n";
  size_t name = 7, region = 6, version = 7;
  for (const ClusterState& state : states) {
    name = std::max(name, state.name.size());
    region = std::max(region, state.region.size());
    version = std::max(version, state.version.size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:<{}}  {}\n", "cluster", name, "region", region, "version",
                                version, "status");
  for (const ClusterState& state : states) {
    out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {}\n", state.name, name, state.region, region, state.version,
                       version, status_words(state.status));
  }
  return out;
}

}  // namespace shardrun::launcher
