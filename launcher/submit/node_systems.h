// What a node has and what it lacks, one line for each system that a job may need: Linux, Slurm, EFA, GPUs, Trainium, images,
// shared memory. Hardware that is there and that nothing drives is the finding that matters.
//
// Effect: reads /proc, /sys, /dev and /etc.
// Thread rule: free functions of the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/submit/installed.h"

namespace shardrun::launcher {

enum class PackageFamily : uint8_t { kUnknown, kDebian, kFedora };

struct NodeFacts {
  std::string distribution;  // as it calls itself
  PackageFamily family = PackageFamily::kUnknown;
  std::string kernel, glibc;
  int nvidia_gpus = 0, neuron_devices = 0,
      efa_interfaces = 0;  // on the PCI bus, whether anything drives them or not
  bool nvidia_driver = false, neuron_driver = false, efa_driver = false;
  bool gpu_library = false;         // shardrun's own trainer for GPUs is installed
  int64_t shared_memory_bytes = 0;  // of /dev/shm, in all
  int64_t memory_bytes = 0;
  std::vector<std::string> container_programs;  // on the PATH
  std::vector<Component> components;            // find_components()
};

// Reads all but the components. `root` stands before /proc, /sys, /dev and /etc; "" outside of tests. `plugin_directory` is the
// installation's, `path` the PATH of who asks.
NodeFacts read_node_facts(const std::string& plugin_directory, const std::string& path,
                          const std::string& root = "");

struct SystemLine {
  bool harm = false;  // a job that uses it here fails, or crawls
  std::string system, words;
};

// Judges the facts: what is there, what is missing, and the command of this distribution that brings it.
std::vector<SystemLine> judge_systems(const NodeFacts& facts);

}  // namespace shardrun::launcher
