#include "runtime/tools/footprint_tool.h"

#include <unistd.h>

#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/descendants.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/trainer/comm/plugin_communicator.h"

namespace shardrun::tools {

int run_footprint_tool(std::span<char* const> arguments) {
  std::optional<comm::PluginSession> endpoints;
  if (arguments.size() == 2) {
    auto opened = comm::PluginSession::open({.plugin_path = arguments[0], .provider = arguments[1]});
    if (!opened) {
      fmt::print(stderr, "shardrun: error: {}\n", base::visible(opened.error().to_string()));
      return contract::exit_code_of(opened.error().code());
    }
    endpoints = std::move(opened).value();
  }
  fmt::print("{}\n", base::resident_bytes_of_tree(::getpid()));
  return contract::kExitDone;
}

}  // namespace shardrun::tools
