#include "launcher/view/prometheus.h"

#include <cmath>

#include <fmt/format.h>

#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

constexpr const char* kEnd = "# EOF\n";

// A label's value in its quotes. Bytes that no terminal should see are escaped before.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : base::visible(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string labels(const RunSample& run) {
  return fmt::format("name={},id={},scheduler={}", quoted(run.name), quoted(run.id), quoted(run.scheduler));
}

// Adds a family whose samples are `value` of each run; NaN: the run has none.
template <typename Value>
void add_family(std::string& text, const std::vector<RunSample>& runs, const char* name, const char* help,
                const Value& value) {
  std::string samples;
  for (const RunSample& run : runs) {
    const double number = value(run);
    if (std::isfinite(number)) samples += fmt::format("{}{{{}}} {}\n", name, labels(run), number);
  }
  if (!samples.empty()) text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n{}", name, help, name, samples);
}

}  // namespace

std::string prometheus_text(const std::vector<RunSample>& runs) {
  std::string text, states;
  for (const RunSample& run : runs) {
    const std::string state = run.state.substr(0, run.state.find_first_of(" ,("));
    states += fmt::format("shardrun_run_state{{{},state={}}} 1\n", labels(run), quoted(state));
  }
  if (states.empty()) return kEnd;
  text = "# HELP shardrun_run_state 1 for the state that the run is in.\n# TYPE shardrun_run_state gauge\n" +
         states;
  const auto of_step = [](double StepPoint::*member) {
    return [member](const RunSample& run) { return run.last_step ? (*run.last_step).*member : NAN; };
  };
  add_family(text, runs, "shardrun_run_ranks", "Ranks of the newest attempt.",
             [](const RunSample& run) { return run.ranks > 0 ? run.ranks : NAN; });
  add_family(text, runs, "shardrun_run_attempts", "Attempts so far; 1 without a restart.",
             [](const RunSample& run) { return run.attempts > 0 ? run.attempts : NAN; });
  add_family(text, runs, "shardrun_run_step", "The last step that was reported.", [](const RunSample& run) {
    return run.last_step ? static_cast<double>(run.last_step->step) : NAN;
  });
  add_family(text, runs, "shardrun_run_loss", "The loss of that step.", of_step(&StepPoint::loss));
  add_family(text, runs, "shardrun_run_tokens_per_second", "Tokens per second in that step, of all ranks.",
             of_step(&StepPoint::tokens_per_second));
  add_family(text, runs, "shardrun_run_step_seconds", "Seconds that the step took.",
             of_step(&StepPoint::step_seconds));
  add_family(text, runs, "shardrun_run_last_step_timestamp_seconds", "When the step ended, in Unix time.",
             [](const RunSample& run) {
               return run.last_step && run.last_step->time > 0 ? run.last_step->time : NAN;
             });
  const auto known = [](std::optional<double> RunSample::*member) {
    return [member](const RunSample& run) { return (run.*member).value_or(NAN); };
  };
  const auto count = [](int RunSample::*member) {
    return [member](const RunSample& run) { return run.attempts > 0 ? run.*member : NAN; };
  };
  struct Known {
    const char *name, *help;
    std::optional<double> RunSample::*member;
  };
  constexpr Known kKnown[] = {
      {"shardrun_run_model_flops_utilization", "Share of the ranks' peak FLOP/s in that step.",
       &RunSample::utilization},
      {"shardrun_run_validation_loss", "The newest validation loss.", &RunSample::validation_loss},
      {"shardrun_run_checkpoint_step", "The step of the newest checkpoint.", &RunSample::checkpoint_step},
      {"shardrun_run_checkpoint_timestamp_seconds", "When it was complete, in Unix time.",
       &RunSample::checkpoint_time},
      {"shardrun_run_resident_memory_bytes", "What the rank that holds most holds now.",
       &RunSample::resident_memory_bytes},
      {"shardrun_run_peak_memory_bytes", "The most that a rank has held, once ranks have ended.",
       &RunSample::peak_memory_bytes},
      {"shardrun_run_planned_memory_bytes", "The most that was planned for a rank.",
       &RunSample::planned_memory_bytes},
      {"shardrun_run_fault_detection_seconds",
       "From the last sign of life to the alarm, at the newest fault.", &RunSample::detection_seconds}};
  for (const Known& one : kKnown) add_family(text, runs, one.name, one.help, known(one.member));
  add_family(text, runs, "shardrun_run_faults", "Attempts that ended by a fault.", count(&RunSample::faults));
  add_family(text, runs, "shardrun_run_stragglers", "Ranks that were too slow, in attempts that are over.",
             count(&RunSample::stragglers));
  return text + kEnd;
}

}  // namespace shardrun::launcher
