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

// Returns whether the node has an EFA device. `root` is the folder in which /sys is looked for; "" is the machine's
// own.
bool has_efa(const std::string& root);

struct OfiPlugin {
  std::string path;     // the library that NCCL will load; empty if there is none
  std::string version;  // "1.13.2-aws"; empty if the library is not aws-ofi-nccl
};
// Finds what NCCL will load, by the loader's rules. `wanted` is the value of NCCL_NET_PLUGIN, or "".
OfiPlugin find_ofi_plugin(std::string_view wanted);

// Says what is wrong with `plugin` on a node with EFA; the text is empty if nothing is.
std::string complaint_about(const OfiPlugin& plugin, std::string_view wanted);
// Returns the name by which NCCL knows the network of that plugin; setting it keeps NCCL from taking another.
std::string network_name(const std::string& plugin_version);

// Finds the version in the bytes of the library, which hold a text such as "Initializing aws-ofi-nccl 1.13.2-aws".
std::string ofi_version_in(std::string_view bytes);

}  // namespace shardrun::nccl
