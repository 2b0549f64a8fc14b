// How NCCL gets at an EC2 node's EFA devices: only through aws-ofi-nccl, without which it silently takes TCP sockets.
//
// Sources: INSTALL.md and doc/efa-env-var.md of aws-ofi-nccl (from 1.7 on nothing has to be set by hand; 1.11.0 and
// older call themselves "AWS Libfabric"), the plugin search of NCCL (src/plugin/plugin_open.cc).
// Thread rule: free functions; they look at files.
#pragma once

#include <string>
#include <string_view>

#include "plugins/common/status.h"

namespace shardrun::nccl {

using common::Status;

// Whether the node below `root` ("" of the machine) has a device of EFA.
bool has_efa(const std::string& root);

struct OfiPlugin {
  std::string path;     // of the library that NCCL will load; empty: none
  std::string version;  // "1.13.2-aws"; empty: the library is something else
};
// What NCCL will load, by the loader's rules. `wanted`: NCCL_NET_PLUGIN, or "".
OfiPlugin find_ofi_plugin(std::string_view wanted);

// What there is to say against it on a node with EFA; text is empty if nothing.
std::string complaint_about(const OfiPlugin& plugin, std::string_view wanted);
// The name by which NCCL knows that network, so that no other can take its place.
std::string network_name(const std::string& plugin_version);

// "Initializing aws-ofi-nccl 1.13.2-aws" in the bytes of the library.
std::string ofi_version_in(std::string_view bytes);

}  // namespace shardrun::nccl
