#include "launcher/verbs/cluster.h"

#include <cstdio>

#include <fmt/format.h>

#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/rules.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Result;

struct Rendered {
  ClusterConfig config;
  std::string yaml;
};

Result<Rendered> render(const std::string& path) {
  auto config = load_cluster(path);
  if (!config) return std::move(config).error();
  std::string yaml = render_pcluster(*config, built_in_catalogue(), path);
  return Rendered{std::move(config).value(), std::move(yaml)};
}

}  // namespace

int cluster_render(const ClusterOptions& options, const CommonOptions& common) {
  const auto rendered = render(options.spec);
  if (!rendered) return fail(rendered.error(), common);
  if (options.output.empty()) {
    fmt::print("{}", rendered->yaml);
    return contract::kExitDone;
  }
  if (const auto written = base::write_file_atomically(options.output, rendered->yaml); !written)
    return fail(written.error(), common);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
