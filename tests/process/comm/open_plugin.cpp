// Opens a comm plugin after loading the libraries that are named, and prints "ok|<its address's length>", or the code and
// text of the refusal.
//   open_plugin PLUGIN [LIBRARY...]
#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/trainer/comm/plugin_communicator.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  for (int i = 2; i < argc; ++i) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) != nullptr) continue;
    fmt::print("{}\n", dlerror());
    return 2;
  }
  const auto session = shardrun::comm::PluginSession::open({.plugin_path = argv[1], .node_count = 1});
  if (session) {
    fmt::print("ok|{}\n", session->local_address().size());
  } else {
    fmt::print("{}|{}\n", shardrun::base::code_name(session.error().code()), session.error().to_string());
  }
}
