// Runs libFuzzer over what describes a cluster: its TOML, then its rules and its rendering, the catalogue, and what
// pcluster, sinfo, kubectl and CloudFormation answer.
#include <cstddef>
#include <cstdint>
#include <string>

#include "launcher/cluster/kubernetes_jobs.h"
#include "launcher/cluster/network.h"
#include "launcher/cluster/pcluster_answer.h"
#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/queues.h"
#include "launcher/cluster/rules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun::launcher;
  static const Catalogue kCatalogue = built_in_catalogue();
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)parse_catalogue(text, "fuzz.toml");
  if (const auto state = parse_cluster_state(text)) (void)cluster_text(*state);
  if (const auto list = parse_cluster_list(text)) (void)cluster_table(list->clusters);
  (void)explain_refusal(text, "name");
  if (const auto queues = parse_queues(text)) (void)queues_table(*queues);
  if (const auto job = parse_kubernetes_job(text)) {
    (void)kubernetes_text(*job);
    (void)kubernetes_logs_command(*job, true);
    (void)kubernetes_cancel_command(*job);
  }
  (void)parse_network(text);
  const auto config = parse_cluster(text, "fuzz.toml");
  if (!config) return 0;
  if (check_cluster(*config, kCatalogue)) (void)render_pcluster(*config, kCatalogue, "fuzz.toml");
  return 0;
}
