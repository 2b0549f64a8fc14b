// The verb that measures this machine or this cluster, keeps what it found, and says how far predictions were off.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/child_program.h"
#include "launcher/foresight/calibration_file.h"
#include "launcher/schedule/stop_signals.h"
#include "launcher/verbs/command_line.h"
#include "launcher/view/progress.h"
#include "runtime/base/allowance.h"
#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/contract/exit_code.h"
#include "runtime/plan/model/llama.h"
#include "runtime/spec/toml_text.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;
using record::Calibration;
using spec::toml_string;

struct CalibrateOptions {
  SpecOptions spec;      // whose nodes, ranks and queue are measured; empty: this machine
  bool network = false;  // measure only the network again
  bool report = false;   // measure nothing
  std::string output;    // empty: where jobs look for it
};

// A run that was predicted and measured.
struct Past {
  std::string run;
  double predicted = 0.0, measured = 0.0;  // seconds of a step
  std::vector<double> interval;            // of the prediction; empty: it had none

  double error() const { return predicted / measured - 1.0; }
};

std::vector<Past> past_predictions(const CommonOptions& common) {
  std::vector<Past> found;
  for (const record::RunDir& run : all_runs(common)) {
    const auto record = read_record(run);
    if (!record || !record->predicted || !record->predicted->step_seconds || !record->metrics) continue;
    if (record->metrics->step_seconds_p50 <= 0.0) continue;
    found.push_back({record->name + "/" + record->id, *record->predicted->step_seconds,
                     record->metrics->step_seconds_p50,
                     record->predicted->step_interval.value_or(std::vector<double>())});
  }
  return found;
}

// "median", of the absolute errors, and the one that is furthest off.
struct PastSummary {
  double median = 0.0;
  Past worst;
};
PastSummary summary_of(const std::vector<Past>& past) {
  PastSummary summary{0.0, past.front()};
  std::vector<double> errors;
  for (const Past& one : past) {
    errors.push_back(std::abs(one.error()));
    if (std::abs(one.error()) > std::abs(summary.worst.error())) summary.worst = one;
  }
  summary.median = record::Spread::of(errors).median;
  return summary;
}

std::string environment_text(const spec::JobSpec& spec) {
  std::string text;
  for (const auto& [name, value] : spec.environment) {
    using Kind = spec::EnvironmentValue::Kind;
    const std::string word = toml_string(value.text);
    const std::string right = value.kind == Kind::kLiteral        ? word
                              : value.kind == Kind::kFromVariable ? "{ from_env = " + word + " }"
                                                                  : "{ from_file = " + word + " }";
    text += fmt::format("{} = {}\n", toml_string(name), right);
  }
  return text.empty() ? text : "[environment]\n" + text;
}

// A command job that has the other job's place: its nodes, ranks, queue, environment and logs.
std::string job_text(const spec::JobSpec& spec, const std::vector<std::string>& command) {
  constexpr const char* kSchedulers[] = {"auto", "local", "slurm", "mpirun"};
  const spec::ResourcesSpec& r = spec.resources;
  std::string text =
      fmt::format("name = \"calibrate\"\n[resources]\nnodes = {}\nranks_per_node = {}\ncpus_per_rank = {}\n",
                  r.nodes, r.ranks_per_node, r.cpus_per_rank);
  const std::pair<const char*, const std::string&> words[] = {{"partition", r.partition},
                                                              {"account", r.account},
                                                              {"constraint", r.constraint},
                                                              {"exclude", r.exclude}};
  for (const auto& [key, value] : words)
    if (!value.empty()) text += fmt::format("{} = {}\n", key, toml_string(value));
  if (r.exclusive) text += "exclusive = true\n";
  if (r.gpus_per_node > 0) text += fmt::format("gpus_per_node = {}\n", r.gpus_per_node);
  return text +
         fmt::format("[cluster]\nscheduler = \"{}\"\n[program]\ncommand = {}\n[logging]\ndirectory = {}\n",
                     kSchedulers[static_cast<int>(spec.cluster.scheduler)], spec::toml_array(command),
                     toml_string(absolute_path(spec.logging.directory))) +
         environment_text(spec);
}

// Returns the sizes of the job's own blocks, which are measured as they are; none where they are no blocks of a plain Llama, or where
// a pass over two layers and the head would take a rank seconds.
std::vector<std::string> own_sizes(const spec::JobSpec& spec) {
  constexpr double kMostFlops = 5e10;
  const spec::ModelSpec& m = spec.model;
  if (spec.program.trainer != plan::LlamaConfig::kTrainer || m.experts.wanted() || m.head_size > 0 ||
      spec.sharding.tensor_parallel > 1 || spec.sharding.context_parallel > 1)
    return {};
  const plan::ModelShape shape = plan::shape_of(plan::LlamaConfig::of(m));
  const double tokens = static_cast<double>(spec.batch.micro_batch) * spec.data.sequence_length;
  if (6.0 * tokens * (2.0 * shape.layer_parameters() + shape.table_parameters()) > kMostFlops) return {};
  std::vector<std::string> sizes;
  for (const int size :
       {spec.batch.micro_batch, spec.data.sequence_length, m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab})
    sizes.push_back(std::to_string(size));
  return sizes;
}

// This machine, with a rank on each CPU that we may use.
spec::JobSpec spec_of_this_machine(const CommonOptions& common) {
  spec::JobSpec spec;
  spec.resources.ranks_per_node = base::usable_cpus();
  spec.cluster.scheduler = spec::SchedulerKind::kLocal;
  spec.logging.directory = common.runs_directory;
  return spec;
}

// How the run that measures ended, and what it measured where that is kExitDone.
struct Measured {
  int exit_code = contract::kExitDone;
  Calibration calibration = {};
};

// Runs the job and reads what it measured. The run's own lines go to stderr with --json.
Result<Measured> measure(const spec::JobSpec& spec, const CalibrateOptions& options, bool json,
                         const std::string& folder) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  ASSIGN_OR_RETURN(auto signals, StopSignals::block());
  const std::string measured = folder + "/measured.toml", job = folder + "/job.toml";
  std::vector<std::string> command = {installed.rank_program, "calibrate", measured,
                                      options.network ? "network" : "all", spec.communication.provider};
  if (!options.network) {
    auto sizes = own_sizes(spec);
    command.insert(command.end(), sizes.begin(), sizes.end());
  }
  RETURN_IF_ERROR(base::write_file_atomically(job, job_text(spec, command)));
  ASSIGN_OR_RETURN(auto ended,
                   run_child_program({installed.shardrun_program, "run", job}, signals.fd(), json));
  if (ended != contract::kExitDone) return Measured{ended};
  ASSIGN_OR_RETURN(const auto text, base::read_file(measured));
  ASSIGN_OR_RETURN(auto calibration, record::parse_calibration(text, measured));
  return Measured{ended, std::move(calibration)};
}

// All that was asked for on all nodes, and the network on fewer of them: one run each, for ranks that only wait would take
// CPUs from those that measure.
Result<Measured> measure_all(spec::JobSpec spec, const CalibrateOptions& options, bool json,
                             const std::string& folder) {
  const int nodes = spec.resources.nodes;
  auto whole = measure(spec, options, json, folder);
  CalibrateOptions network = options;
  network.network = true;
  int measured = 0;
  for (int count = 1; whole && whole->exit_code == contract::kExitDone && count < nodes && measured < 3;
       count *= 2, ++measured) {
    if (count == 1 && spec.resources.ranks_per_node == 1) continue;  // it has nobody to talk to
    spec.resources.nodes = count;
    auto part = measure(spec, network, json, folder);
    if (!part || part->exit_code != contract::kExitDone) return part;
    auto& all = whole->calibration.collectives;
    all.insert(all.end(), part->calibration.collectives.begin(), part->calibration.collectives.end());
  }
  return whole;
}

// What was measured before, of which only the network is measured again.
Result<Calibration> measured_before(const std::string& path) {
  const auto text = base::read_file(path);
  if (!text) return Error(Code::kInvalid, path + " is not there; calibrate everything before --network");
  return record::parse_calibration(*text, path);
}

// The same with the network as it is now.
Result<Calibration> with_network(const std::string& path, const Calibration& fresh) {
  auto before = measured_before(path);
  if (!before) return before;
  if (before->cpus_per_rank != fresh.cpus_per_rank)
    return Error(Code::kInvalid, path + " was measured with another cpus_per_rank; calibrate everything");
  record::NetworkCalibration& network = *before;
  network = fresh;
  return before;
}

// Bytes a second that one rank sends in the largest collective of a kind. An all_reduce is a reduce_scatter and an all_gather.
double rate_of(const record::CollectiveProbe& probe) {
  const auto ranks = static_cast<double>(probe.ranks);
  const double times = probe.kind == "all_reduce" ? 2.0 : 1.0;
  return probe.seconds.median > 0.0
             ? times * static_cast<double>(probe.bytes) * (ranks - 1.0) / ranks / probe.seconds.median
             : 0.0;
}

// Returns the largest size of each curve.
std::vector<record::CollectiveProbe> largest_of(const Calibration& calibration) {
  std::vector<record::CollectiveProbe> largest;
  for (const record::CollectiveProbe& probe : calibration.collectives) {
    const auto same = std::find_if(largest.begin(), largest.end(), [&](const auto& other) {
      return other.kind == probe.kind && other.among == probe.among && other.nodes == probe.nodes;
    });
    if (same == largest.end()) {
      largest.push_back(probe);
    } else if (probe.bytes > same->bytes) {
      *same = probe;
    }
  }
  return largest;
}

void print_past(const std::vector<Past>& past, const std::string& runs) {
  if (past.empty()) {
    print_text("predictions  no run in {} was predicted yet\n", runs);
    return;
  }
  const PastSummary summary = summary_of(past);
  print_text("predictions  of {} runs in {}: off by {:.1f} % (median), {:+.1f} % at worst ({})\n",
             past.size(), runs, 100.0 * summary.median, 100.0 * summary.worst.error(), summary.worst.run);
  constexpr size_t kShown = 10;
  for (size_t i = 0; i < past.size() && i < kShown; ++i)
    print_text("  {:<44} predicted {:>9.4f} s{}, measured {:>9.4f} s  {:+6.1f} %\n", past[i].run,
               past[i].predicted,
               past[i].interval.size() == 2
                   ? fmt::format(" ({:.4f} to {:.4f})", past[i].interval[0], past[i].interval[1])
                   : "",
               past[i].measured, 100.0 * past[i].error());
}

void print_machine(const MeasuredMachine& machine, const std::string& path) {
  const Calibration& c = machine.calibration();
  print_text("calibrated   {} nodes on {} machines, {} ranks a node, {} CPUs a rank of {}; {}\n", c.nodes,
             c.machines, c.ranks_per_node, c.cpus_per_rank, c.cpus_per_node, c.cpu);
  for (const record::GemmRate& gemm : c.gemms)
    print_text("  product      {} {:>5}  {:>8.1f} GFLOP/s a rank ({:.1f} to {:.1f})\n", gemm.type, gemm.size,
               gemm.flops_per_second.median / 1e9, gemm.flops_per_second.low / 1e9,
               gemm.flops_per_second.high / 1e9);
  print_text("  memory       {:.1f} GB/s a rank ({:.1f} to {:.1f})\n", c.memory_bytes_per_second.median / 1e9,
             c.memory_bytes_per_second.low / 1e9, c.memory_bytes_per_second.high / 1e9);
  print_text("  optimizer    {:.3f} ns a parameter\n", c.update_seconds_per_parameter.median * 1e9);
  print_text("  steps        {} shapes; between them predicted within {:.1f} %\n", c.steps.size(),
             100.0 * machine.worst_fit());
  for (const record::CollectiveProbe& probe : largest_of(c))
    print_text("  {:<14} {:<8} {} nodes, {} ranks: {:>9.3f} Gbit/s a rank, {:.1f} ms, {:.1f} ms of CPU\n",
               probe.kind, probe.among, probe.nodes, probe.ranks, rate_of(probe) * 8e-9,
               probe.seconds.median * 1e3, probe.cpu_seconds * 1e3);
  print_text("kept in      {}\n", path);
}

// What the verb found out, for --json.
struct CalibrateReport {
  std::string path, runs;                  // of the calibration; of the runs that were predicted
  std::optional<MeasuredMachine> machine;  // absent: nobody has calibrated yet
  std::vector<Past> past;
};

struct CollectiveRate {
  record::CollectiveProbe probe;
};

void fields(auto& visit, const CollectiveRate& rate) {
  visit("kind", rate.probe.kind);
  visit("among", rate.probe.among);
  visit("nodes", rate.probe.nodes);
  visit("ranks", rate.probe.ranks);
  visit("bytes_per_second", rate_of(rate.probe), base::significant(7));
}

void fields(auto& visit, const Past& past) {
  visit("run", past.run);
  visit("predicted_seconds", past.predicted, base::significant(7));
  visit("measured_seconds", past.measured, base::significant(7));
  if (!past.interval.empty()) visit("interval", past.interval, base::significant(7));
}

void fields(auto& visit, const CalibrateReport& report) {
  if (report.machine) {
    const Calibration& c = report.machine->calibration();
    visit("file", report.path);
    visit("nodes", c.nodes);
    visit("machines", c.machines);
    visit("ranks_per_node", c.ranks_per_node);
    visit("cpus_per_rank", c.cpus_per_rank);
    visit("measured_at", c.measured_at, base::decimals(3));
    visit("network_measured_at", c.network_measured_at, base::decimals(3));
    visit("bf16_flops_per_second", report.machine->peak("bf16"), base::significant(7));
    visit("memory_bytes_per_second", c.memory_bytes_per_second.median, base::significant(7));
    visit("worst_fit", report.machine->worst_fit(), base::decimals(4));
    std::vector<CollectiveRate> rates;
    for (record::CollectiveProbe& probe : largest_of(c)) rates.push_back({std::move(probe)});
    visit("collectives", rates);
  }
  visit("predictions", report.past);
}

// Removes the folder that the measuring job wrote into.
struct Scratch {
  std::string folder;
  ~Scratch() {
    std::error_code ignored;
    if (!folder.empty()) fs::remove_all(folder, ignored);
  }
};

// Refuses a place where nothing could be kept, as a disk that is full, before anybody measures for minutes.
Result<void> check_place(const std::string& path) {
  constexpr size_t kRoom = 64 << 10;  // bytes, which no calibration has
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    return Error(Code::kInvalid, path + " is no file; name another file with --output");
  const std::string trial = fmt::format("{}.trial-{}", path, ::getpid());
  auto tried = base::make_directories(path.substr(0, path.find_last_of('/')));
  if (tried) tried = base::write_file_atomically(trial, std::string(kRoom, '#'));
  ::unlink(trial.c_str());
  if (tried) return tried;
  return Error(tried.error().code(), fmt::format("{} could not be kept: {}; name another file with --output",
                                                 path, tried.error().message()));
}

// Writes the calibration that was measured to `path`; prints it where it cannot be written.
Result<MeasuredMachine> keep(Calibration measured, const CalibrateOptions& options, const std::string& path) {
  ASSIGN_OR_RETURN(auto kept, options.network ? with_network(path, measured) : std::move(measured));
  auto machine = MeasuredMachine::of(kept);
  if (!machine) return machine;
  const std::string text = record::to_toml(kept);
  auto written = base::make_directories(path.substr(0, path.find_last_of('/')));
  if (written) written = base::write_file_atomically(path, text);
  if (written) return machine;
  say_error(text);
  return Error(written.error().code(), fmt::format("{}; what was measured is printed above: write it to {}",
                                                   written.error().message(), path));
}

Result<Measured> measure_anew(const spec::JobSpec& spec, const CalibrateOptions& options, bool json) {
  const std::string runs = absolute_path(spec.logging.directory) + "/calibrate";
  const Scratch scratch{fmt::format("{}/.measured-{}", runs, ::getpid())};
  RETURN_IF_ERROR(base::make_directories(scratch.folder));
  return measure_all(spec, options, json, scratch.folder);
}

Result<int> calibrate(const CalibrateOptions& options, const CommonOptions& common) {
  spec::JobSpec spec = spec_of_this_machine(common);
  if (options.spec.path.empty() && !options.spec.overrides.empty())
    return Error(Code::kInvalid, fmt::format("--set {}: there is no job whose key that is; name a job.toml",
                                             options.spec.overrides.front()));
  if (!options.spec.path.empty()) {
    ASSIGN_OR_RETURN(auto loaded, load_spec(options.spec.path, options.spec.overrides));
    spec = std::move(loaded.spec);
  }
  ASSIGN_OR_RETURN(const std::string path,
                   options.output.empty() ? calibration_path(spec) : absolute_path(options.output));
  CommonOptions where = common;
  where.runs_directory = absolute_path(spec.logging.directory);
  CalibrateReport report{path, where.runs_directory, std::nullopt, {}};
  if (options.report) {
    ASSIGN_OR_RETURN(report.machine, load_calibration(path));
  } else {
    if (options.network) {  // before anything is measured that nobody could keep
      RETURN_IF_ERROR(measured_before(path));
    }
    RETURN_IF_ERROR(check_place(path));
    ASSIGN_OR_RETURN(auto measured, measure_anew(spec, options, common.json));
    if (measured.exit_code != contract::kExitDone) {
      fail(Error(Code::kIo, "the cluster could not be measured; what the run says is above"), common);
      return measured.exit_code;
    }
    ASSIGN_OR_RETURN(report.machine, keep(std::move(measured.calibration), options, path));
  }
  report.past = past_predictions(where);
  if (common.json) {
    print_text("{}", base::json_of(report, base::kJsonReport));
    return contract::kExitDone;
  }
  if (report.machine) print_machine(*report.machine, path);
  if (!report.machine) print_text("calibrated   not yet: {} is not there\n", path);
  print_past(report.past, report.runs);
  return contract::kExitDone;
}

}  // namespace

void add_calibrate(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<CalibrateOptions>();
  CLI::App* verb = app.add_subcommand(
      "calibrate",
      "Measure this machine or a job's cluster, for predictions; say how far the last ones were off");
  verb->add_option("spec", options.spec.path,
                   "job.toml, whose nodes, ranks and queue are measured; default: this machine");
  add_overrides(*verb, options.spec.overrides);
  CLI::Option* network =
      verb->add_flag("--network", options.network, "Measure only the network again, and keep the rest");
  verb->add_flag("--report", options.report, "Measure nothing; show what is known")->excludes(network);
  verb->add_option("--output", options.output, "Write to this file, in the place of where jobs look for it");
  verb->add_option("--runs", line.common.runs_directory,
                   "Without a job: where run directories are looked for")
      ->capture_default_str();
  add_common(*verb, line, true);
  verb->footer(
      "Takes half a minute to one and a half. Nothing else should run on the nodes.\nExample:\n  shardrun "
      "calibrate\n"
      "  shardrun calibrate jobs/four-ranks.toml --set resources.nodes=4");
  verb->callback([&] { line.end(calibrate(options, line.common)); });
}

}  // namespace shardrun::launcher
