#include "runtime/record/launch_plan.h"

#include "runtime/record/json_reader.h"

namespace shardrun::record {
namespace {

// Every number of a plan is used in products: refuse what a solved plan cannot hold.
Result<void> check_sizes(const LaunchPlan& plan) {
  constexpr int64_t kLargest = int64_t{1} << 40;
  if (plan.nodes < 1 || plan.ranks_per_node < 1 || plan.cpus_per_rank < 1 ||
      int64_t{plan.nodes} * plan.ranks_per_node > LaunchPlan::kLargestWorld) {
    return base::Error(base::Code::kCorrupt,
                       "plan.json: nodes, ranks_per_node or cpus_per_rank are out of range");
  }
  for (const int64_t number : {plan.batch.global_batch, plan.batch.micro_batch,
                               plan.batch.gradient_accumulation, plan.batch.data_parallel}) {
    if (number < 0 || number > kLargest) {
      return base::Error(base::Code::kCorrupt,
                         fmt::format("plan.json batch: {} is no number of sequences", number));
    }
  }
  if (!plan.batch.is_possible())
    return base::Error(base::Code::kCorrupt, "plan.json batch: these numbers do not make a batch");
  return {};
}

}  // namespace

std::string to_json(const LaunchPlan& plan) {
  return dump_json({{"format_version", LaunchPlan::kFormatVersion},
                    {"name", plan.name},
                    {"id", plan.id},
                    {"scheduler", plan.scheduler},
                    {"run_directory", plan.run_directory},
                    {"working_directory", plan.working_directory},
                    {"rank_program", plan.rank_program},
                    {"plugin_directory", plan.plugin_directory},
                    {"overrides", plan.overrides},
                    {"nodes", plan.nodes},
                    {"ranks_per_node", plan.ranks_per_node},
                    {"cpus_per_rank", plan.cpus_per_rank},
                    {"world_size", plan.world_size()},
                    {"variables", plan.variables},
                    {"precompile_run", plan.precompile_run},
                    {"batch",
                     {{"global_batch", plan.batch.global_batch},
                      {"micro_batch", plan.batch.micro_batch},
                      {"gradient_accumulation", plan.batch.gradient_accumulation},
                      {"data_parallel", plan.batch.data_parallel}}}});
}

Result<LaunchPlan> parse_launch_plan(std::string_view text) {
  auto json = parse_json(text, "plan.json");
  if (!json) return std::move(json).error();
  JsonReader reader(*json, "plan.json");
  int version = 0;
  reader.read("format_version", version);
  RETURN_IF_ERROR(reader.finish());
  if (version > LaunchPlan::kFormatVersion) {
    return base::Error(base::Code::kUnsupported,
                       fmt::format("plan.json has format {}, this version reads {}; use a newer shardrun",
                                   version, LaunchPlan::kFormatVersion));
  }
  LaunchPlan plan;
  reader.read("name", plan.name);
  reader.read("id", plan.id);
  reader.read("scheduler", plan.scheduler);
  reader.read("run_directory", plan.run_directory);
  reader.read("working_directory", plan.working_directory);
  reader.read("rank_program", plan.rank_program);
  reader.read("plugin_directory", plan.plugin_directory);
  reader.read("nodes", plan.nodes);
  reader.read("ranks_per_node", plan.ranks_per_node);
  reader.read("cpus_per_rank", plan.cpus_per_rank);
  if (const auto* overrides = reader.member("overrides"); overrides != nullptr && overrides->is_array()) {
    for (const auto& item : *overrides) {
      if (item.is_string()) plan.overrides.push_back(item.get<std::string>());
    }
  }
  if (const auto* variables = reader.member("variables"); variables != nullptr && variables->is_object()) {
    for (const auto& [name, value] : variables->items()) {
      if (value.is_string()) plan.variables[name] = value.get<std::string>();
    }
  }
  std::optional<std::string> precompile_run;
  reader.read_optional("precompile_run", precompile_run);
  plan.precompile_run = precompile_run.value_or("");
  const nlohmann::json* batch = reader.member("batch");
  if (batch == nullptr) reader.fail("plan.json: \"batch\" is missing");
  RETURN_IF_ERROR(reader.finish());
  JsonReader sizes(*batch, "plan.json batch");
  sizes.read("global_batch", plan.batch.global_batch);
  sizes.read("micro_batch", plan.batch.micro_batch);
  sizes.read("gradient_accumulation", plan.batch.gradient_accumulation);
  sizes.read("data_parallel", plan.batch.data_parallel);
  RETURN_IF_ERROR(sizes.finish());
  RETURN_IF_ERROR(check_sizes(plan));
  return plan;
}

}  // namespace shardrun::record
