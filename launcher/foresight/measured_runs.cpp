#include "launcher/foresight/measured_runs.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "launcher/foresight/earlier_runs.h"
#include "launcher/foresight/question.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// What one --measured says.
struct Said {
  double tokens_per_second = 0.0;
  std::string machine;  // empty: the job's
  LoadedSpec loaded;
};

Result<double> number_of(const std::string& key, std::string_view value) {
  double number = 0.0;
  const auto [end, wrong] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number = wrong == std::errc() && end == value.data() + value.size();
  if (!is_number || !(number > 0.0) || !std::isfinite(number))
    return Error(Code::kInvalid, fmt::format("{}={}: not a number above 0", key, value));
  return number;
}

Result<Said> said_in_line(const PlanOptions& options, const std::string& text) {
  Said said;
  std::vector<std::string> overrides = options.spec.overrides;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "tokens_per_second") {
      ASSIGN_OR_RETURN(said.tokens_per_second, number_of(key, value));
    } else if (key == "machine") {
      said.machine = value;
    } else if (key == "nodes") {
      overrides.push_back("resources.nodes=" + value);
    } else if (key.find('.') != std::string::npos) {
      overrides.push_back(part);
    } else {
      return Error(Code::kInvalid,
                   fmt::format("{}: unknown; write tokens_per_second, nodes, machine, or keys of "
                               "the spec as section.key",
                               key));
    }
  }
  if (said.tokens_per_second == 0.0)
    return Error(Code::kInvalid, "no rate; write tokens_per_second=…, of all ranks together");
  ASSIGN_OR_RETURN(said.loaded, load_spec(options.spec.path, overrides));
  return said;
}

Result<Said> said_by_run(const std::string& directory) {
  const record::RunDir run{directory};
  ASSIGN_OR_RETURN(const auto plan, read_plan(run));
  ASSIGN_OR_RETURN(const auto record, read_record(run));
  if (!record.metrics || record.metrics->tokens_per_second <= 0.0)
    return Error(Code::kInvalid, "its record has no rate; take a run that trained");
  Said said;
  said.tokens_per_second = record.metrics->tokens_per_second;
  ASSIGN_OR_RETURN(said.loaded, load_prepared_spec(run.job_toml(), plan.overrides));
  if (said.loaded.spec.resources.device == spec::DeviceKind::kCpu)
    return Error(Code::kInvalid, "it trained on CPUs, and predictions are of accelerators; take another run");
  ASSIGN_OR_RETURN(const auto instance, machine_of(said.loaded.spec));
  if (instance) said.machine = instance->type;
  if (said.machine.empty())
    return Error(Code::kInvalid,
                 fmt::format("its job names no machine; write tokens_per_second={:.0f},machine=…",
                             said.tokens_per_second));
  return said;
}

}  // namespace

Result<MeasuredRun> measured_run(const PlanOptions& options, const LoadedSpec& loaded,
                                 const std::string& text) {
  const bool is_line = text.find('=') != std::string::npos;
  ASSIGN_OR_RETURN(auto said, is_line ? said_in_line(options, text) : said_by_run(text));
  if (said.machine.empty()) said.machine = said.loaded.spec.cluster.instance;
  if (said.machine.empty()) said.machine = options.machines.substr(0, options.machines.find(','));
  if (said.machine.empty()) said.machine = loaded.spec.cluster.instance;
  if (said.machine.empty())
    return Error(Code::kInvalid, "not said on which machine; add machine=p4d.24xlarge");
  ASSIGN_OR_RETURN(const auto question, question_of(options, said.loaded, said.machine));
  const auto layout = layout_as_written(said.loaded.spec, question);
  if (!layout)
    return Error(
        Code::kInvalid,
        fmt::format("its batch or sharding does not divide over {} nodes of {}; say how it ran, e.g. "
                    "batch.global_batch=1024",
                    question.nodes, said.machine));
  return MeasuredRun{run_of(question, *layout), said.tokens_per_second};
}

std::vector<std::string> measured_texts(const PlanOptions& options) {
  std::vector<std::string> texts;
  for (const std::string& text : options.measured) {
    const std::vector<EarlierRun> runs = earlier_runs(text);
    for (const EarlierRun& run : runs) texts.push_back(run.directory);
    if (runs.empty()) texts.push_back(text);
  }
  return texts;
}

Result<std::vector<MeasuredRun>> measured_runs(const PlanOptions& options, const LoadedSpec& loaded) {
  std::vector<MeasuredRun> runs;
  for (const std::string& text : measured_texts(options)) {
    auto run = measured_run(options, loaded, text);
    if (!run) return std::move(run).error().context("--measured " + text);
    runs.push_back(std::move(run).value());
  }
  return runs;
}

}  // namespace shardrun::launcher
