// The verb that says what this machine has and lacks, system by system, and what will hurt a job: versions, variables, ports, limits.
#include <sys/resource.h>
#include <unistd.h>

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/submit/environment_lint.h"
#include "launcher/submit/installed.h"
#include "launcher/submit/node_systems.h"
#include "launcher/verbs/command_line.h"
#include "runtime/base/trust.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/master_port.h"

extern char** environ;

namespace shardrun::launcher {
namespace {

// This process's variables, and over them those that the spec writes out.
base::Result<std::map<std::string, std::string>> job_environment(const SpecOptions& options) {
  std::map<std::string, std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      environment[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  if (options.path.empty()) return environment;
  ASSIGN_OR_RETURN(auto loaded, load_spec(options.path, options.overrides));
  for (const auto& [name, value] : loaded.spec.environment) {
    if (value.kind == spec::EnvironmentValue::Kind::kLiteral) environment[name] = value.text;
  }
  return environment;
}

// Lines of what the ports and limits of this machine mean; those that will hurt begin with "! ".
std::vector<std::string> machine_lines() {
  std::vector<std::string> lines;
  const contract::PortRange ephemeral = contract::ephemeral_ports();
  lines.push_back(fmt::format("  {:<14} {}-{}: rendezvous ports are chosen outside of it", "ephemeral ports",
                              ephemeral.low, ephemeral.high));
  for (const int port : {29400, 29500}) {
    if (port >= ephemeral.low && port <= ephemeral.high) {
      lines.push_back(
          fmt::format("! {:<14} torchrun's default {} lies in the ephemeral range: any connection may "
                      "take it; let shardrun choose MASTER_PORT",
                      "port", port));
    }
  }
  if (!contract::choose_port(ephemeral, static_cast<uint64_t>(::getpid()), contract::can_bind)) {
    lines.push_back(fmt::format("! {:<14} no port outside the ephemeral range is free", "port"));
  }
  struct rlimit limit {};
  const bool has_efa = ::access("/dev/infiniband/uverbs0", F_OK) == 0;
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (has_efa && limit.rlim_cur != RLIM_INFINITY) {
    lines.push_back(
        fmt::format("! {:<14} {} bytes: EFA registers buffers, so set it to unlimited (ulimit -l, "
                    "limits.d, slurmd's unit)",
                    "memlock limit", limit.rlim_cur));
  }
  return lines;
}

// Lines of the job's files that somebody else could change. Content of others is usual; commands of others start no job.
base::Result<std::vector<std::string>> file_lines(const SpecOptions& options) {
  std::vector<std::string> lines;
  ASSIGN_OR_RETURN(auto loaded, load_spec(options.path, options.overrides));
  const spec::JobSpec& spec = loaded.spec;
  const auto look = [&](char mark, const std::string& what, const std::string& path) {
    auto ours =
        mark == '!' ? base::refuse_if_others_make(absolute_path(path)) : base::refuse_if_others_write(path);
    if (!ours && ours.error().code() == base::Code::kRefused)
      lines.push_back(fmt::format("{} {:<14} {}", mark, what, ours.error().to_string()));
  };
  look('!', "spec", options.path);
  look('!', "runs", spec.logging.directory);
  // What the newest run of this job met.
  const record::RunDir newest{absolute_path(spec.logging.directory) + "/" + spec.name + "/latest"};
  if (const auto record = read_record(newest)) {
    for (const record::Attempt& attempt : record->attempts)
      if (attempt.strangers)
        lines.push_back(fmt::format("  {:<14} attempt {} of run {}: {}", "strangers", attempt.number,
                                    record->id, *attempt.strangers));
  }
  for (const std::string& file : spec.data.files) look(' ', "data", file);
  for (const std::string& file : spec.data.validation) look(' ', "validation", file);
  for (const spec::EvaluationSet& set : spec.evaluation.sets)
    for (const std::string& file : set.files) look(' ', "evaluation", file);
  if (spec.model.init != "random") look(' ', "weights", spec.model.init);
  return lines;
}

// What is there of each system, and what is missing; those that will hurt begin with "! ".
std::vector<std::string> system_lines(const std::vector<Component>& components,
                                      const std::map<std::string, std::string>& environment) {
  const auto installed = find_installation();
  const auto path = environment.find("PATH");
  NodeFacts facts = read_node_facts(installed ? installed->plugin_directory : "",
                                    path == environment.end() ? "" : path->second);
  facts.components = components;
  std::vector<std::string> lines;
  for (const SystemLine& line : judge_systems(facts))
    lines.push_back(
        fmt::format("{} {:<14} {}", line.harm ? '!' : ' ', line.system, base::visible(line.words)));
  return lines;
}

base::Result<int> doctor(const SpecOptions& options) {
  ASSIGN_OR_RETURN(auto environment, job_environment(options));
  bool harm = false;
  const auto components = find_components();
  print_text("systems\n");
  for (const std::string& line : system_lines(components, environment)) {
    harm = harm || line.front() == '!';
    print_text("{}\n", line);
  }
  print_text("installed\n");
  for (const Component& component : components) {
    print_text("  {:<14} {:<12} {}\n", component.name,
               component.version.empty() ? "not found" : component.version, component.note);
  }
  print_text("machine\n");
  for (const std::string& line : machine_lines()) {
    harm = harm || line.front() == '!';
    print_text("{}\n", line);
  }
  if (!options.path.empty()) {
    ASSIGN_OR_RETURN(const auto lines, file_lines(options));
    print_text("files\n");
    for (const std::string& line : lines) {
      harm = harm || line.front() == '!';
      print_text("{}\n", base::visible(line));
    }
    if (lines.empty()) print_text("  nobody else can change the spec, its data, its weights, or the runs\n");
  }
  print_text("variables\n");
  const auto findings = lint_environment(environment);
  for (const VariableFinding& finding : findings) {
    const bool harmful = finding.kind == VariableFinding::Kind::kHarmful;
    harm = harm || harmful;
    print_text("{} {}={} is {}: {}\n", harmful ? "!" : " ", finding.name, finding.value,
               harmful ? "harmful" : "obsolete", finding.reason);
  }
  if (findings.empty()) print_text("  none that is obsolete or harmful\n");
  print_text("  aws-ofi-nccl sets by itself: {}\n", fmt::join(set_by_the_plugin(), ", "));
  return harm ? contract::kExitProgramFailed : contract::kExitDone;
}

}  // namespace

void add_doctor(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<SpecOptions>();
  CLI::App* verb = app.add_subcommand(
      "doctor",
      "Say what this machine has and lacks, and what will hurt jobs: versions, variables, ports, limits");
  verb->add_option("spec", options.path, "job.toml, whose [environment] is looked at, too");
  add_overrides(*verb, options.overrides);
  add_common(*verb, line, false);
  verb->footer(
      "[fault_tolerance] preflight looks at the variables on every node of a job.\nExample:\n  shardrun "
      "doctor jobs/llama-2-7b-p5.toml");
  verb->callback([&] { line.end(doctor(options)); });
}

}  // namespace shardrun::launcher
