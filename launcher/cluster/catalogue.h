// Catalogue: the machines that shardrun knows, from cluster-configs/instances.toml, which is built in.
//
// It holds what a cluster configuration, a job's defaults and the planner take from a machine. The file names the
// source of each figure; its grammar is in docs/cluster-spec.md.
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

// Dense peaks in TFLOP/s; 0 where the hardware has no such path.
struct PeakTflops {
  double bf16 = 0, fp16 = 0, tf32 = 0, fp32 = 0, fp8 = 0;
};

struct Accelerator {
  std::string name;   // "h100"
  std::string maker;  // "nvidia" or "aws"
  int64_t memory_mib = 0;
  double memory_gbytes_per_second = 0;  // bandwidth of its own memory
  double link_gbytes_per_second = 0;    // bandwidth to the others of its node, both directions together
  PeakTflops peak;
  int ranks = 1;  // processes that a framework starts for each
};

struct Instance {
  std::string type;  // "p5.48xlarge"
  std::optional<Accelerator> accelerator;
  int accelerators = 0;
  int vcpus = 0;
  int threads_per_core = 1;
  int64_t memory_mib = 0;
  double network_gbits_per_second = 0;
  int efa_interfaces = 0;  // 0: the type has no EFA
  int network_cards = 1;
  PeakTflops cpu_peak;  // peak of all cores; given for types without accelerators

  int cores() const { return vcpus / threads_per_core; }
  // Returns the number of ranks that use the whole machine: one for each accelerator, or for each of its core
  // groups; 1 without any.
  int ranks() const { return accelerator ? accelerators * accelerator->ranks : 1; }
};

struct Catalogue {
  std::vector<Instance> instances;  // in the file's order, by name

  const Instance* find(std::string_view type) const;
  // Finds an accelerator of NVIDIA by what its driver calls it, e.g. "NVIDIA H200" or "NVIDIA A100-SXM4-80GB";
  // null where none is meant. PCIe and NVL boards have other peaks than the board that has the name alone, so
  // they match none.
  const Accelerator* find_accelerator(std::string_view device) const;
  std::vector<std::string> types() const;
};

// Errors: kInvalid, "file:line:column: what; mend".
base::Result<Catalogue> parse_catalogue(std::string_view text, std::string_view file_name);

// Returns the catalogue that this shardrun was built with.
Catalogue built_in_catalogue();

}  // namespace shardrun::launcher
