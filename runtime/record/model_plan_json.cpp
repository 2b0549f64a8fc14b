#include "runtime/record/model_plan_json.h"

#include "runtime/base/json_fields.h"

namespace shardrun::record {

std::string to_json(const plan::ModelPlan& plan) {
  return base::json_of(plan);
}

Result<plan::ModelPlan> parse_model_plan(std::string_view text) {
  return base::parse_fields<plan::ModelPlan>(text, "the model's plan");
}

}  // namespace shardrun::record
