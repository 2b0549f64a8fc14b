#include "runtime/record/model_plan_json.h"

#include <optional>

#include "runtime/record/json_reader.h"

namespace shardrun::record {
namespace {

struct Kind {
  const char* name;
  int64_t plan::MemoryPlan::*bytes;
};
constexpr Kind kKinds[] = {{"masters", &plan::MemoryPlan::masters},
                           {"compute_copy", &plan::MemoryPlan::compute_copy},
                           {"gradients", &plan::MemoryPlan::gradients},
                           {"moments", &plan::MemoryPlan::moments},
                           {"gathered", &plan::MemoryPlan::gathered},
                           {"activations", &plan::MemoryPlan::activations},
                           {"offloaded", &plan::MemoryPlan::offloaded},
                           {"workspace", &plan::MemoryPlan::workspace},
                           {"communication", &plan::MemoryPlan::communication},
                           {"saving", &plan::MemoryPlan::saving},
                           {"in_files", &plan::MemoryPlan::in_files},
                           {"process", &plan::MemoryPlan::process},
                           {"on_gpu", &plan::MemoryPlan::on_gpu},
                           {"context", &plan::MemoryPlan::context}};

}  // namespace

nlohmann::json memory_json(const plan::MemoryPlan& plan) {
  nlohmann::json object = {{"total", plan.total()}};
  for (const Kind& kind : kKinds) object[kind.name] = plan.*kind.bytes;
  return object;
}

Result<plan::MemoryPlan> read_memory(const nlohmann::json& object) {
  plan::MemoryPlan plan;
  JsonReader reader(object, "planned memory");
  for (const Kind& kind : kKinds) {
    std::optional<int64_t> bytes;  // kinds are added: records of before lack them
    reader.read_optional(kind.name, bytes);
    plan.*kind.bytes = bytes.value_or(0);
  }
  RETURN_IF_ERROR(reader.finish());
  return plan;
}

std::string to_json(const plan::ModelPlan& plan) {
  return dump_json({{"parameters", plan.parameters},
                    {"blocks", plan.blocks},
                    {"flops_per_token", plan.flops_per_token.causal},
                    {"full_flops_per_token", plan.flops_per_token.full},
                    {"shard_degree", plan.shard_degree},
                    {"replicas", plan.replicas},
                    {"tensor_parallel", plan.tensor_parallel},
                    {"bytes_per_rank", memory_json(plan.memory)}});
}

}  // namespace shardrun::record
