#include "launcher/cluster/network.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::member;
using base::Result;
using base::text_of;

std::vector<std::string> cloudformation(std::vector<std::string> words, const std::string& region) {
  words.insert(words.begin(), {"aws", "cloudformation"});
  if (!region.empty()) words.insert(words.end(), {"--region", region});
  return words;
}

}  // namespace

std::string network_stack(const std::string& cluster) {
  return cluster + "-network";
}

std::vector<std::string> make_network_command(const std::string& cluster, const std::string& zone,
                                              const std::string& template_file, const std::string& region) {
  return cloudformation({"deploy", "--stack-name", network_stack(cluster), "--template-file", template_file,
                         "--parameter-overrides", "Zone=" + zone, "--no-fail-on-empty-changeset"},
                        region);
}

std::vector<std::string> ask_network_command(const std::string& cluster, const std::string& region) {
  return cloudformation({"describe-stacks", "--stack-name", network_stack(cluster), "--query",
                         "Stacks[0].Outputs", "--output", "json"},
                        region);
}

std::vector<std::string> delete_network_command(const std::string& cluster, const std::string& region) {
  return cloudformation({"delete-stack", "--stack-name", network_stack(cluster)}, region);
}

Result<Network> parse_network(std::string_view text) {
  const nlohmann::json outputs = base::parse_json(text);
  Network network;
  if (outputs.is_array()) {
    for (const nlohmann::json& output : outputs) {
      const std::string key = text_of(member(output, "OutputKey")),
                        value = text_of(member(output, "OutputValue"));
      if (key == "PublicSubnetId") network.public_subnet = value;
      if (key == "PrivateSubnetId") network.private_subnet = value;
    }
  }
  for (const auto& [name, subnet] : {std::pair("PublicSubnetId", &network.public_subnet),
                                     std::pair("PrivateSubnetId", &network.private_subnet)})
    if (!subnet->starts_with("subnet-"))
      return Error(Code::kCorrupt,
                   fmt::format("the network's stack has no output {}: is it of another template?", name));
  return network;
}

void use_network(const Network& network, ClusterConfig& config) {
  config.head.subnet = network.public_subnet;
  if (config.login) config.login->subnet = network.public_subnet;
  for (Queue& queue : config.queues) queue.subnets = {network.private_subnet};
}

}  // namespace shardrun::launcher
