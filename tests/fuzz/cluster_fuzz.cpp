// libFuzzer over what describes a cluster: its TOML, then its rules and its rendering, and the catalogue.
#include <cstddef>
#include <cstdint>
#include <string>

#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/rules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun::launcher;
  static const Catalogue kCatalogue = built_in_catalogue();
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)parse_catalogue(text, "fuzz.toml");
  const auto config = parse_cluster(text, "fuzz.toml");
  if (!config) return 0;
  if (check_cluster(*config, kCatalogue)) (void)render_pcluster(*config, kCatalogue, "fuzz.toml");
  return 0;
}
