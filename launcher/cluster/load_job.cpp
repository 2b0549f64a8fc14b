#include "launcher/cluster/load_job.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/cluster/built_in.h"
#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/pretrained.h"
#include "launcher/cluster/rules.h"

namespace shardrun::launcher {
namespace {

using base::Result;

// Returns whether nothing is left for the machine to decide: a job in a pod has no file of its cluster.
bool is_complete(const spec::JobSpec& spec) {
  const auto given = [&](const char* key) { return spec.origins.contains(key); };
  if (!given("resources.ranks_per_node") || !given("resources.cpus_per_rank")) return false;
  if (!spec.program.command.empty()) return given("resources.gpus_per_node");
  if (!given("resources.device") || (spec.resources.nodes > 1 && !given("communication.provider")))
    return false;
  return spec.resources.device == spec::DeviceKind::kCpu ||
         (given("resources.gpus_per_node") && given("communication.plugin"));
}

bool names_machine(const spec::JobSpec& spec) {
  return !spec.cluster.instance.empty() || !spec.cluster.config.empty();
}

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

Result<LoadedSpec> parse_prepared(std::string text, const std::string& name,
                                  const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(auto spec, spec::parse_job_spec(text, name, overrides));
  return LoadedSpec{std::move(spec), std::move(text), overrides};
}

// Where a job starts from a checkpoint, it has what that says of the model.
Result<LoadedSpec> parse_with_weights(const std::string& text, const std::string& name,
                                      const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(const auto weights, find_pretrained(text, name, overrides));
  if (!weights) return parse_prepared(text, name, overrides);
  std::vector<std::string> complete = overrides;
  complete.insert(complete.end(), weights->overrides.begin(), weights->overrides.end());
  ASSIGN_OR_RETURN(LoadedSpec loaded, parse_prepared(text, name, complete));
  for (const std::string& one : weights->overrides) loaded.spec.origins[key_of(one)] = weights->path;
  RETURN_IF_ERROR(check_pretrained(loaded.spec, *weights));
  return loaded;
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
  RETURN_IF_ERROR(found);
  return *found == nullptr ? std::nullopt : std::optional<Instance>(**found);
}

Result<LoadedSpec> load_prepared_spec(const std::string& path, const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(auto text, spec::read_job_text(path));
  return parse_prepared(std::move(text), path, overrides);
}

bool LoadedSpec::says(const std::string& key) const {
  const bool filled = std::any_of(filled_in.begin(), filled_in.end(),
                                  [&](const std::string& one) { return key_of(one) == key; });
  return spec.origins.contains(key) && !filled;
}

// Lets the machine that the job names decide what is left to it.
static Result<LoadedSpec> fill_in(LoadedSpec loaded, const std::string& path) {
  if (is_complete(loaded.spec)) return loaded;
  ASSIGN_OR_RETURN(const auto instance, machine_of(loaded.spec));
  const spec::JobSpec& spec = loaded.spec;
  if (instance) {
    ASSIGN_OR_RETURN(loaded.filled_in, instance_overrides(spec, *instance));
    loaded.machine = instance->type;
  } else if (names_machine(spec) && !spec.program.trainer.empty() &&
             !spec.origins.contains("resources.device")) {
    loaded.filled_in = {"resources.device=cpu"};  // of a machine that the catalogue lacks
  }
  if (loaded.filled_in.empty()) return loaded;
  const std::string origin = spec.origin(spec.cluster.config.empty() ? "cluster.instance" : "cluster.config");
  loaded.overrides.insert(loaded.overrides.end(), loaded.filled_in.begin(), loaded.filled_in.end());
  ASSIGN_OR_RETURN(loaded.spec, spec::parse_job_spec(loaded.text, path, loaded.overrides));
  for (const std::string& one : loaded.filled_in) loaded.spec.origins[key_of(one)] = origin;
  return loaded;
}

Result<LoadedSpec> load_spec(const std::string& path, const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(const auto text, spec::read_job_text(path));
  return load_spec_text(text, path, overrides);
}

Result<LoadedSpec> load_spec_text(const std::string& text, const std::string& name,
                                  const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(LoadedSpec loaded, parse_with_weights(text, name, overrides));
  return fill_in(std::move(loaded), name);
}

std::string filled_in_text(const LoadedSpec& loaded) {
  if (loaded.filled_in.empty() || loaded.machine.empty()) return "";
  return fmt::format("{} fills in {}", loaded.machine, fmt::join(loaded.filled_in, ", "));
}

}  // namespace shardrun::launcher
