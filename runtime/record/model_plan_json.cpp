#include "runtime/record/model_plan_json.h"

#include "runtime/base/json_fields.h"

namespace shardrun::record {

std::string to_json(const plan::ModelPlan& plan) {
  return base::json_of(plan);
}

}  // namespace shardrun::record
