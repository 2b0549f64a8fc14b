// [container] of a job spec: the image that a command program runs in.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

enum class ContainerRuntime { kAuto, kApptainer, kSingularity, kCharliecloud, kPyxis };

struct ContainerSpec {
  std::string image;  // empty: no container
  ContainerRuntime runtime = ContainerRuntime::kAuto;
  std::vector<std::string> mounts;     // "SOURCE[:TARGET[:ro]]", absolute paths
  std::vector<std::string> arguments;  // given to the runtime, before the image

  bool is_given() const { return !image.empty(); }
};

struct Mount {
  std::string source, target;
  bool read_only = false;
};
// Reads a text that read_container has accepted.
Mount parse_mount(const std::string& text);
// Says whether a path can stand in a runtime's list of mounts, which gives ':' and ',' a meaning of their own.
bool can_be_mounted(const std::string& path);

// Reads the section. Refuses what no runtime could do, and a section beside the built-in trainer.
void read_container(const TomlValue& document, bool is_command, SpecReading& reading,
                    ContainerSpec& container);

}  // namespace shardrun::spec
