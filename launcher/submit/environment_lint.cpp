#include "launcher/submit/environment_lint.h"

#include <string_view>

#include "runtime/base/text.h"

namespace shardrun::launcher {
namespace {

using Kind = VariableFinding::Kind;

struct Rule {
  std::string_view name;   // ends with * for a prefix
  std::string_view value;  // in lower case; empty: any
  Kind kind;
  std::string_view reason;
};

constexpr Rule kRules[] = {
    {"FI_PROVIDER", "efa", Kind::kObsolete,
     "the plugin chooses efa by itself, and other programs of the job lose their providers; remove it"},
    {"FI_PROVIDER", "", Kind::kHarmful,
     "every libfabric program of the job is bound to this provider, NCCL's plugin among them; remove it, and "
     "write "
     "[communication] provider"},
    {"FI_EFA_USE_DEVICE_RDMA", "0", Kind::kHarmful, "turns GPUDirect RDMA off where it exists; remove it"},
    {"FI_EFA_USE_DEVICE_RDMA", "", Kind::kObsolete,
     "libfabric 1.18 uses GPUDirect RDMA by itself; remove it"},
    {"FI_EFA_FORK_SAFE", "", Kind::kObsolete,
     "the plugin sets it where it is needed, and kernels from 5.13 on do not need it; remove it"},
    {"FI_EFA_ENABLE_SHM_TRANSFER", "", Kind::kObsolete,
     "NCCL has its own way inside a node, so it changes nothing for it; remove it"},
    {"NCCL_PROTO", "simple", Kind::kObsolete,
     "the plugin's tuner chooses the protocol; this gives LL128 away; remove it"},
    {"NCCL_BUFFSIZE", "", Kind::kObsolete, "the plugin sets 8388608 where it helps; leave the default"},
    {"NCCL_MIN_CHANNELS", "", Kind::kObsolete,
     "the plugin's tuning assumes NCCL's own number of channels; leave the default"},
    {"NCCL_MIN_NCHANNELS", "", Kind::kObsolete,
     "the plugin's tuning assumes NCCL's own number of channels; leave the default"},
    {"NCCL_SOCKET_IFNAME", "", Kind::kObsolete,
     "interface names differ between instance types: NCCL finds the interface by itself, and a wrong name "
     "hangs the "
     "bootstrap; remove it unless the default is wrong here"},
    {"RDMAV_*", "", Kind::kHarmful,
     "aws-ofi-nccl's documentation forbids it beside EFA's own protection of forks; remove it"},
};

bool matches(const Rule& rule, const std::string& name, const std::string& value) {
  const bool named = rule.name.ends_with('*') ? name.starts_with(rule.name.substr(0, rule.name.size() - 1))
                                              : name == rule.name;
  return named && (rule.value.empty() || rule.value == base::lower_case(value));
}

}  // namespace

std::vector<VariableFinding> lint_environment(const std::map<std::string, std::string>& environment) {
  std::vector<VariableFinding> findings;
  for (const auto& [name, value] : environment) {
    for (const Rule& rule : kRules) {
      if (!matches(rule, name, value)) continue;
      findings.push_back({name, value, rule.kind, std::string(rule.reason)});
      break;
    }
  }
  return findings;
}

std::vector<std::string> set_by_the_plugin() {
  return {"provider efa",
          "FI_EFA_FORK_SAFE (not on Neuron)",
          "NCCL_BUFFSIZE=8388608",
          "NCCL_P2P_NET_CHUNKSIZE=524288",
          "NCCL_NVLS_CHUNKSIZE and NCCL_NET_FORCE_FLUSH=0 (p5 and later)",
          "NCCL_NETDEVS_POLICY=max:1 (p5en, p6-b200)",
          "NCCL_TUNER_PLUGIN and NCCL_TOPO_FILE"};
}

}  // namespace shardrun::launcher
