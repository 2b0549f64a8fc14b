// One rank under a real launcher: connect_world() through PMIx, then every collective.
//
//   world_peer PLUGIN [PROVIDER] [quick]
//
// Prints "ok <provider>", or the error; with "quick", only the milliseconds that connect_world took.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "runtime/trainer/comm/world.h"
#include "tests/process/comm/peer_checks.h"

using namespace shardrun;

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  comm::WorldOptions options;
  options.groups = {{}, {}};
  options.plugin_path = argv[1];
  if (argc > 2) options.provider = argv[2];
  options.timeout = std::chrono::seconds(30);
  const auto started = std::chrono::steady_clock::now();
  auto world = comm::connect_world(options);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
  if (!world) {
    fmt::print("{}\n", world.error().to_chain_string());
    return 1;
  }
  if (argc > 3) {
    fmt::print("{:.1f} ms\n", took.count());
    return 0;
  }
  std::string error = tests::check_collectives(*world->communicators[0]);
  if (error.empty()) error = tests::check_overlap(*world->communicators[0], *world->communicators[1]);
  fmt::print("{}\n", error.empty() ? "ok " + world->provider : error);
  return error.empty() ? 0 : 1;
}
