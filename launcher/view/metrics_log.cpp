#include "launcher/view/metrics_log.h"

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace shardrun::launcher {
namespace {

double number(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

void replace_from(std::vector<StepPoint>& points, const StepPoint& point) {
  while (!points.empty() && points.back().step >= point.step) points.pop_back();
  points.push_back(point);
}

}  // namespace

void add_metrics(std::string_view text, TrainingCurve& curve) {
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    const auto object = base::parse_json(line);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) continue;
    const int attempt = static_cast<int>(number(object, "attempt"));
    if (attempt < curve.newest_attempt) continue;  // written by an attempt that had been replaced
    curve.newest_attempt = attempt;
    StepPoint point;
    point.step = object["step"].get<int64_t>();
    point.loss = number(object, "loss");
    point.tokens_per_second = number(object, "tokens_per_second");
    point.step_seconds = number(object, "step_seconds");
    if (!object.contains("event")) {
      replace_from(curve.steps, point);
    } else if (object["event"] == "validation") {
      replace_from(curve.validations, point);
      curve.unigram_entropy = number(object, "unigram_entropy");
    }
  }
}

}  // namespace shardrun::launcher
