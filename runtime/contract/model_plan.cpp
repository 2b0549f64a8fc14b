#include "runtime/contract/model_plan.h"

#include <optional>

#include "runtime/contract/json_reader.h"
#include "runtime/contract/model_plan_json.h"

namespace shardrun::contract {

namespace {

struct Kind {
  const char* name;
  int64_t MemoryPlan::*bytes;
};
constexpr Kind kKinds[] = {{"masters", &MemoryPlan::masters},
                           {"compute_copy", &MemoryPlan::compute_copy},
                           {"gradients", &MemoryPlan::gradients},
                           {"moments", &MemoryPlan::moments},
                           {"gathered", &MemoryPlan::gathered},
                           {"activations", &MemoryPlan::activations},
                           {"offloaded", &MemoryPlan::offloaded},
                           {"workspace", &MemoryPlan::workspace},
                           {"communication", &MemoryPlan::communication},
                           {"saving", &MemoryPlan::saving},
                           {"in_files", &MemoryPlan::in_files},
                           {"process", &MemoryPlan::process},
                           {"on_gpu", &MemoryPlan::on_gpu},
                           {"context", &MemoryPlan::context}};

}  // namespace

nlohmann::json memory_json(const MemoryPlan& plan) {
  nlohmann::json object = {{"total", plan.total()}};
  for (const Kind& kind : kKinds) object[kind.name] = plan.*kind.bytes;
  return object;
}

Result<MemoryPlan> read_memory(const nlohmann::json& object) {
  MemoryPlan plan;
  JsonReader reader(object, "planned memory");
  for (const Kind& kind : kKinds) {
    std::optional<int64_t> bytes;  // kinds are added: records of before lack them
    reader.read_optional(kind.name, bytes);
    plan.*kind.bytes = bytes.value_or(0);
  }
  RETURN_IF_ERROR(reader.finish());
  return plan;
}

std::string to_json(const ModelPlan& plan) {
  return dump_json({{"parameters", plan.parameters},
                    {"blocks", plan.blocks},
                    {"flops_per_token", plan.flops_per_token.causal},
                    {"full_flops_per_token", plan.flops_per_token.full},
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
  reader.read("flops_per_token", plan.flops_per_token.causal);
  reader.read("full_flops_per_token", plan.flops_per_token.full);
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
