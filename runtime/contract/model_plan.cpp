#include "runtime/contract/model_plan.h"

#include "runtime/contract/json_reader.h"
#include "runtime/contract/model_plan_json.h"

namespace shardrun::contract {

nlohmann::json memory_json(const MemoryPlan& plan) {
  return {{"masters", plan.masters},   {"compute_copy", plan.compute_copy}, {"gradients", plan.gradients},
          {"moments", plan.moments},   {"gathered", plan.gathered},         {"activations", plan.activations},
          {"in_files", plan.in_files}, {"process", plan.process},           {"total", plan.total()}};
}

Result<MemoryPlan> read_memory(const nlohmann::json& object) {
  MemoryPlan plan;
  JsonReader reader(object, "planned memory");
  reader.read("masters", plan.masters);
  reader.read("compute_copy", plan.compute_copy);
  reader.read("gradients", plan.gradients);
  reader.read("moments", plan.moments);
  reader.read("gathered", plan.gathered);
  reader.read("activations", plan.activations);
  reader.read("in_files", plan.in_files);
  reader.read("process", plan.process);
  RETURN_IF_ERROR(reader.finish());
  return plan;
}

std::string to_json(const ModelPlan& plan) {
  return dump_json({{"parameters", plan.parameters},
                    {"blocks", plan.blocks},
                    {"flops_per_token", plan.flops_per_token},
                    {"shard_degree", plan.shard_degree},
                    {"replicas", plan.replicas},
                    {"tensor_parallel", plan.tensor_parallel},
                    {"bytes_per_rank", memory_json(plan.memory)}});
}

Result<ModelPlan> parse_model_plan(std::string_view text) {
  auto object = parse_json(text, "the model's plan");
  if (!object) return std::move(object).error();
  ModelPlan plan;
  JsonReader reader(*object, "the model's plan");
  reader.read("parameters", plan.parameters);
  reader.read("blocks", plan.blocks);
  reader.read("flops_per_token", plan.flops_per_token);
  reader.read("shard_degree", plan.shard_degree);
  reader.read("replicas", plan.replicas);
  reader.read("tensor_parallel", plan.tensor_parallel);
  const nlohmann::json* memory = reader.member("bytes_per_rank");
  if (memory == nullptr) reader.fail("the model's plan: \"bytes_per_rank\" is missing");
  RETURN_IF_ERROR(reader.finish());
  auto bytes = read_memory(*memory);
  if (!bytes) return std::move(bytes).error();
  plan.memory = *bytes;
  return plan;
}

}  // namespace shardrun::contract
