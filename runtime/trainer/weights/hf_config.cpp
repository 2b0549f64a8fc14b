#include "runtime/trainer/weights/hf_config.h"

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::weights {
Result<std::string> config_json(const std::string& config, const std::string& dtype, int64_t max_positions) {
  nlohmann::json object = base::parse_json(config);
  if (!object.is_object()) {
    return base::Error(base::Code::kCorrupt, "the checkpoint does not hold its model's configuration");
  }
  object["torch_dtype"] = dtype;
  if (!object.contains("max_position_embeddings")) object["max_position_embeddings"] = max_positions;
  return base::json_text(object, /*indent=*/2) + "\n";
}

}  // namespace shardrun::weights
