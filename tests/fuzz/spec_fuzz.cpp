// Runs libFuzzer over every parser of outside bytes of the shared ground: a spec, an override, and the JSON files.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/record/exit_lines.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/results.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun::spec;
  using namespace shardrun::record;
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)parse_job_spec(text, "fuzz.toml");
  const std::vector<std::string> overrides = {text.substr(0, text.find('\n'))};
  (void)parse_job_spec("name = \"x\"\n[program]\ncommand = [\"env\"]\n", "fuzz.toml", overrides);
  if (auto plan = parse_launch_plan(text)) (void)to_json(*plan);
  if (auto record = parse_run_record(text)) (void)to_results_json(*record, nullptr);
  for (const auto& [rank, exit] : parse_rank_exits(text)) (void)to_line(exit);
  (void)parse_training_metrics(text);
  return 0;
}
