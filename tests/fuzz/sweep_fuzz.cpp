// Runs libFuzzer over the runs of a sweep: a list of them, values of axes, and numbers of nodes. What is accepted are assignments,
// which a list says again, and which a job spec takes or refuses.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/grid.h"
#include "launcher/plan/scale.h"
#include "runtime/base/result.h"
#include "runtime/base/text.h"
#include "runtime/spec/job_spec.h"

using namespace shardrun;

namespace {

void check_runs(const std::vector<launcher::Assignments>& runs) {
  SHARDRUN_CHECK(!runs.empty() && runs.size() <= launcher::kMostRuns);
  for (const launcher::Assignments& run : runs)
    for (const std::string& assignment : run)
      SHARDRUN_CHECK(assignment.find('=') != std::string::npos && assignment.front() != '=');
  (void)launcher::check_assignments(runs);
  (void)spec::parse_job_spec("name = \"x\"\n[program]\ncommand = [\"env\"]\n", "fuzz.toml", runs.front());
}

void check_list(const std::string& text) {
  const auto runs = launcher::parse_list(text, "list.txt");
  if (!runs) return;
  check_runs(*runs);
  std::string written;
  for (const launcher::Assignments& run : *runs) {
    SHARDRUN_CHECK(!run.empty());
    for (const std::string& assignment : run)
      written += ' ' + assignment;  // a # behind a blank is no comment
    written += '\n';
  }
  const auto again = launcher::parse_list(written, "list.txt");
  SHARDRUN_CHECK(again.has_value() && *again == *runs);
}

void check_grid(std::string_view text) {
  constexpr size_t kMostAxes = 8;  // of a person's command line
  std::vector<std::string> axes;
  while (!text.empty() && axes.size() < kMostAxes) axes.emplace_back(base::take_line(text));
  if (const auto runs = launcher::parse_grid(axes)) check_runs(*runs);
}

void check_counts(std::string_view text) {
  const auto counts = launcher::parse_node_counts(text.substr(0, 32));
  if (!counts) return;
  SHARDRUN_CHECK(!counts->empty() && counts->front() >= 1);
  for (size_t i = 1; i < counts->size(); ++i) SHARDRUN_CHECK((*counts)[i - 1] < (*counts)[i]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_list(text);
  check_grid(text);
  check_counts(text);
  return 0;
}
