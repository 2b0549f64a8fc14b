#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/scale.h"
#include "launcher/runs/run_state.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/command_line.h"
#include "launcher/view/scale_plot.h"
#include "launcher/view/scale_report.h"
#include "runtime/base/io.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::Scaling;

struct ScaleOptions {
  SpecOptions spec;
  std::string nodes;    // "1,2,4", "1-8"
  std::string scaling;  // "strong", "weak", or the spec's own
  bool run = false;     // submit the sweep, wait for it, measure
  bool dry_run = false;
  std::string report;  // the folder of a sweep that was submitted before
};

struct Sweep {
  LoadedSpec loaded;
  std::vector<ScaleRow> rows;
  std::string shardrun_program;
};

Result<Sweep> plan_sweep(const ScaleOptions& options) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  ASSIGN_OR_RETURN(auto loaded, load_spec_to_start(options.spec.path, options.spec.overrides));
  ASSIGN_OR_RETURN(auto counts, parse_node_counts(options.nodes));
  ASSIGN_OR_RETURN(auto context, plan_context(loaded.spec, installed, loaded.overrides, "slurm"));
  std::optional<Scaling> scaling;
  if (!options.scaling.empty()) scaling = options.scaling == "weak" ? Scaling::kWeak : Scaling::kStrong;
  ASSIGN_OR_RETURN(auto rows, scale_table(loaded.spec, counts, context, scaling));
  return Sweep{std::move(loaded), std::move(rows), installed.shardrun_program};
}

ScaleReport report_of(const Sweep& sweep, const std::string& scaling) {
  const spec::JobSpec& spec = sweep.loaded.spec;
  ScaleReport report;
  report.name = spec.name;
  report.scaling = !scaling.empty() ? scaling : spec.batch.scaling == Scaling::kWeak ? "weak" : "strong";
  for (const ScaleRow& row : sweep.rows) {
    ScaleLine line;
    line.nodes = row.nodes;
    line.ranks = row.nodes * spec.resources.ranks_per_node;
    if (!row.refusal.empty()) {
      line.refusal = ScaleRefusal{row.refusal, {}};
      for (const int64_t count : {row.nearest.below, row.nearest.above})
        if (count > 0) line.refusal->nearest_nodes.push_back(count);
    }
    if (row.plan) {
      line.batch = row.plan->batch;
      line.micro_steps = row.micro_steps();
      if (spec.program.command.empty())
        line.tokens_per_step = line.batch.global_batch * spec.data.sequence_length;
    }
    report.lines.push_back(std::move(line));
  }
  return report;
}

// The array of the rows that can run; kRefused when there is none.
Result<ArrayRequest> array_of(const Sweep& sweep) {
  if (sweep.loaded.spec.cluster.scheduler == spec::SchedulerKind::kLocal) {
    return Error(Code::kInvalid, fmt::format("{}: a sweep is a Slurm array; write scheduler = \"slurm\"",
                                             sweep.loaded.spec.origin("cluster.scheduler")));
  }
  ArrayRequest request;
  for (const ScaleRow& row : sweep.rows) {
    if (row.plan) request.plans.push_back(*row.plan);
  }
  if (request.plans.empty()) return Error(Code::kRefused, "no number of nodes of --nodes can run this job");
  request.job = SubmitRequest{&sweep.loaded.spec,         sweep.loaded.text,      request.plans.back(),
                              runs_of(sweep.loaded.spec), sweep.shardrun_program, ""};
  return request;
}

// Brings a result up to what is known of its run now; says whether that is over. The error is that of a run that cannot be read
// now.
Result<bool> look_up(ScaleResult& result) {
  std::error_code failure;
  if (!std::filesystem::exists(result.run, failure) && !failure) {
    if (!result.seconds) result.status = "gone";  // what was measured before stays
    return true;
  }
  ASSIGN_OR_RETURN(const auto state, look_at({result.run}));
  result.status = state.status;
  if (const auto& record = state.record) {
    if (!record->attempts.empty() && record->attempts.back().ended)
      result.seconds = *record->attempts.back().ended - record->attempts.back().started;
    if (record->metrics && record->metrics->tokens_per_second > 0.0)
      result.tokens_per_second = record->metrics->tokens_per_second;
  }
  return is_over(state);
}

// Returns the report once every run is over, looking at those that are not once a second.
ScaleReport when_over(ScaleReport report, bool tells) {
  std::vector<ScaleLine*> open;
  std::set<const ScaleLine*> unreadable;  // which was told
  for (ScaleLine& line : report.lines)
    if (line.result) open.push_back(&line);
  while (true) {
    std::erase_if(open, [&](ScaleLine* line) {
      const auto over = look_up(*line->result);
      if (!over && unreadable.insert(line).second)
        warn({fmt::format("{} nodes: {}; it is looked at again", line->nodes, over.error().to_string())});
      if (!over || !*over) return false;
      if (tells) say_error(fmt::format("shardrun: {} nodes: {}\n", line->nodes, line->result->status));
      return true;
    });
    if (open.empty()) return report;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

// Waits, writes scale.json and scale.svg into `directory`, and prints what was measured.
Result<int> finish_sweep(ScaleReport report, const std::string& directory, const CommonOptions& common) {
  report = when_over(std::move(report), !common.json);
  measure_efficiency(report);
  const std::string json_path = directory + "/scale.json", plot_path = directory + "/scale.svg";
  RETURN_IF_ERROR(base::write_file_atomically(json_path, to_json(report)));
  std::vector<ScalePoint> points;
  for (const ScaleLine& line : report.lines) {
    if (line.result && line.result->efficiency) points.push_back({line.nodes, *line.result->efficiency});
  }
  const std::string svg =
      scale_plot_svg(points, fmt::format("{}: {} scaling efficiency", report.name, report.scaling));
  if (!svg.empty()) {
    RETURN_IF_ERROR(base::write_file_atomically(plot_path, svg));
  }
  if (common.json) {
    print_text("{}", to_json(report));
  } else {
    print_text("{}  record      {}\n", base::visible_lines(scale_table_text(report)), json_path);
    if (!svg.empty()) print_text("  efficiency  {}\n", plot_path);
  }
  const bool all_well = std::all_of(report.lines.begin(), report.lines.end(), [](const ScaleLine& line) {
    return !line.result || line.result->status == "completed";
  });
  return all_well ? contract::kExitDone : contract::kExitProgramFailed;
}

Result<int> run_sweep(const Sweep& sweep, ScaleReport report, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto request, array_of(sweep));
  ASSIGN_OR_RETURN(auto warnings, check_launch(sweep.loaded.spec, request.job.plan));
  warn(warnings);
  const std::string runs = request.job.runs_directory;
  ASSIGN_OR_RETURN(auto submitted, submit_array(std::move(request)));
  report.id = submitted.front().id.substr(0, submitted.front().id.find('_'));
  size_t next = 0;
  for (ScaleLine& line : report.lines) {
    if (!line.refusal) line.result = ScaleResult{submitted[next++].run_directory, "queued", {}, {}, {}};
  }
  const std::string directory = runs + "/" + report.id;
  RETURN_IF_ERROR(base::make_directories(directory));
  RETURN_IF_ERROR(base::write_file_atomically(directory + "/scale.json", to_json(report)));
  if (!common.json) {
    say_error(fmt::format(
        "shardrun: submitted array {} of {} runs; this waits for them, and so does later: shardrun "
        "scale --report {}\n",
        report.id, submitted.size(), directory));
  }
  return finish_sweep(std::move(report), directory, common);
}

Result<int> report_sweep(const std::string& given, const CommonOptions& common) {
  const std::string directory = absolute_path(given);
  ASSIGN_OR_RETURN(auto text, base::read_file(directory + "/scale.json"));
  auto report = parse_scale_report(text);
  if (!report) return std::move(report).error().context(directory);
  return finish_sweep(std::move(report).value(), directory, common);
}

Result<int> scale(const ScaleOptions& options, const CommonOptions& common) {
  if (!options.report.empty()) return report_sweep(options.report, common);
  ASSIGN_OR_RETURN(auto sweep, plan_sweep(options));
  ScaleReport report = report_of(sweep, options.scaling);
  if (options.run && !options.dry_run) return run_sweep(sweep, std::move(report), common);
  print_text("{}", common.json ? to_json(report) : base::visible_lines(scale_table_text(report)));
  if (options.run) {
    ASSIGN_OR_RETURN(auto request, array_of(sweep));
    ASSIGN_OR_RETURN(auto text, describe_array(request));
    if (common.json) {
      say_error(text);  // standard output is one object
    } else {
      print_text("\n{}", text);
    }
  }
  return contract::kExitDone;
}

}  // namespace

void add_scale(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<ScaleOptions>();
  CLI::App* verb =
      app.add_subcommand("scale", "Show a job's batch on several numbers of nodes, and measure it there");
  CLI::Option* spec = verb->add_option("spec", options.spec.path, "job.toml");
  CLI::Option* nodes = verb->add_option("--nodes", options.nodes, "Numbers of nodes, e.g. 1,2,4 or 1-8,16");
  verb->add_option("--scaling", options.scaling, "strong or weak; default: the job's own")
      ->check(CLI::IsMember({"strong", "weak"}));
  add_overrides(*verb, options.spec.overrides);
  verb->add_flag("--run", options.run,
                 "Submit one Slurm array with a run for each, wait, and print the efficiency");
  verb->add_flag(
      "--dry-run", options.dry_run,
      "With --run: print the script and the commands, with --json to standard error; submit nothing");
  CLI::Option* report =
      verb->add_option("--report", options.report, "Wait for a sweep submitted before: its folder");
  report->excludes(spec)->excludes(nodes);
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun scale jobs/bert-large.toml --nodes 1,2,4,8,16,32,64,128,256");
  verb->callback([&, spec, nodes, report] {
    if (report->count() == 0 && (spec->count() == 0 || nodes->count() == 0)) {
      line.end(usage_error("scale needs a job spec and --nodes, e.g. shardrun scale job.toml --nodes 1,2,4"));
      return;
    }
    line.end(scale(options, line.common));
  });
}

}  // namespace shardrun::launcher
