// Runs libFuzzer over the files of a run directory. What is accepted and written again must be accepted, and be the
// same when it is written once more.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/view/log_lines.h"
#include "launcher/view/metrics_log.h"
#include "launcher/view/scale_report.h"
#include "launcher/view/sweep_report.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_phases.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/line_metrics.h"
#include "runtime/record/preflight.h"
#include "runtime/record/run_record.h"

namespace {

using namespace shardrun;

// An exit is a line of its node's file.
std::string to_json(const record::RankExit& exit) {
  return record::to_line(exit);
}

template <typename Parse>
void check(std::string_view text, Parse parse) {
  const auto first = parse(text);
  if (!first) return;
  const auto second = parse(to_json(*first));
  SHARDRUN_CHECK(second.has_value());
  SHARDRUN_CHECK(to_json(*second) == to_json(*first));
}

// Requires that no byte from a program that could steer the terminal reaches it.
void check_log(std::string_view text) {
  std::vector<launcher::LogLine> lines;
  while (!text.empty()) {
    launcher::LogLine line;
    const size_t end = std::min(text.find('\n'), text.size());
    if (parse_log_line(text.substr(0, end), line)) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  for (const launcher::LogGroup& group : launcher::collapse(lines)) {
    for (const char c : launcher::render(group, /*colour=*/false)) {
      const auto byte = static_cast<unsigned char>(c);
      SHARDRUN_CHECK((byte >= 0x20 || byte == '\t') && byte != 0x7f);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, record::parse_launch_plan);
  check(text, record::parse_run_record);
  check(text, record::parse_rank_exit);
  check(text, record::parse_training_metrics);
  check(text, record::parse_node_facts);
  check(text, record::parse_measurement);
  check(text, launcher::parse_scale_report);
  check(text, launcher::parse_sweep_report);
  if (const auto sweep = launcher::parse_sweep_report(text)) (void)launcher::sweep_table_text(*sweep);
  if (const auto phases = record::parse_launch_phases(text)) (void)record::to_line(*phases);
  launcher::TrainingCurve curve;
  add_metrics(text, curve);
  if (const auto figures = record::metrics_of_lines(text)) (void)to_json(*figures);
  check_log(text);
  return 0;
}
