#include "launcher/cluster/load_job.h"

#include "launcher/cluster/built_in.h"
#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/rules.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

using base::Result;

// Returns whether nothing is left for the machine to decide: a job in a pod has no file of its cluster.
bool is_complete(const spec::JobSpec& spec) {
  const auto given = [&](const char* key) { return spec.origins.contains(key); };
  return given("resources.ranks_per_node") && given("resources.cpus_per_rank") &&
         (spec.resources.nodes == 1 || !spec.program.command.empty() || given("communication.provider"));
}

}  // namespace

Result<std::optional<Instance>> machine_of(const spec::JobSpec& spec) {
  const Catalogue catalogue = built_in_catalogue();
  Result<const Instance*> found = static_cast<const Instance*>(nullptr);
  if (!spec.cluster.instance.empty()) {
    found = find_job_instance(spec, catalogue);
  } else if (!spec.cluster.config.empty()) {
    auto config = load_cluster(spec.cluster.config);
    if (!config) return std::move(config).error().context(spec.origin("cluster.config"));
    found = find_queue_instance(spec, *config, catalogue);
  }
  if (!found) return std::move(found).error();
  return *found == nullptr ? std::nullopt : std::optional<Instance>(**found);
}

Result<LoadedSpec> load_prepared_spec(const std::string& path, const std::vector<std::string>& overrides) {
  auto spec = spec::load_job_spec(path, overrides);
  if (!spec) return std::move(spec).error();
  auto text = base::read_file(path);
  if (!text) return std::move(text).error();
  return LoadedSpec{std::move(spec).value(), std::move(text).value(), overrides};
}

Result<LoadedSpec> load_spec(const std::string& path, const std::vector<std::string>& overrides) {
  auto loaded = load_prepared_spec(path, overrides);
  if (!loaded || is_complete(loaded->spec)) return loaded;
  const auto instance = machine_of(loaded->spec);
  if (!instance) return instance.error();
  if (!*instance) return loaded;
  const auto own = instance_overrides(loaded->spec, **instance);
  if (own.empty()) return loaded;
  loaded->overrides.insert(loaded->overrides.end(), own.begin(), own.end());
  auto complete = spec::parse_job_spec(loaded->text, path, loaded->overrides);
  if (!complete) return std::move(complete).error();
  loaded->spec = std::move(complete).value();
  return loaded;
}

}  // namespace shardrun::launcher
