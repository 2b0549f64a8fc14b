#include "launcher/submit/environment_lint.h"

#include <doctest/doctest.h>

using namespace shardrun::launcher;
using Kind = VariableFinding::Kind;

TEST_CASE("doctor: every variable that is obsolete or harmful on EFA is named with a reason and a mend") {
  const auto findings = lint_environment({{"FI_PROVIDER", "efa"},
                                          {"FI_EFA_USE_DEVICE_RDMA", "1"},
                                          {"FI_EFA_FORK_SAFE", "1"},
                                          {"FI_EFA_ENABLE_SHM_TRANSFER", "1"},
                                          {"NCCL_PROTO", "Simple"},
                                          {"NCCL_BUFFSIZE", "4194304"},
                                          {"NCCL_MIN_CHANNELS", "4"},
                                          {"RDMAV_FORK_SAFE", "1"},
                                          {"RDMAV_HUGEPAGES_SAFE", "1"}});
  REQUIRE(findings.size() == 9);
  for (const VariableFinding& finding : findings) {
    CAPTURE(finding.name);
    CHECK((finding.reason.find("; remove it") != std::string::npos ||
           finding.reason.find("; leave the default") != std::string::npos));
    CHECK((finding.kind == Kind::kHarmful) == finding.name.starts_with("RDMAV_"));
  }
}

TEST_CASE("doctor: the value decides where it matters") {
  CHECK(lint_environment({{"FI_PROVIDER", "tcp"}}).at(0).kind == Kind::kHarmful);
  CHECK(lint_environment({{"FI_EFA_USE_DEVICE_RDMA", "0"}}).at(0).kind == Kind::kHarmful);
  CHECK(lint_environment({{"NCCL_PROTO", "LL"}}).empty());
}

TEST_CASE("doctor: what may be needed, and everything else, is left alone") {
  CHECK(lint_environment({{"FI_EFA_USE_HUGE_PAGE", "0"}, {"NCCL_DEBUG", "INFO"}, {"PATH", "/bin"}}).empty());
}
