// shardrun: the command line. Each verb fills its options and calls one function of launcher/verbs.
#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "launcher/verbs/cluster.h"
#include "launcher/verbs/completion.h"
#include "launcher/verbs/verbs.h"
#include "runtime/contract/exit_code.h"

namespace {

namespace contract = shardrun::contract;
namespace launcher = shardrun::launcher;

// Says on one line what is wrong with the command line.
int usage_error(const char* what) {
  std::fprintf(stderr, "shardrun: error: %s; see shardrun --help, or --help of the verb\n", what);
  return contract::kExitBadInput;
}

struct Arguments {
  launcher::CommonOptions common;
  std::vector<std::string> paths;
  launcher::SpecOptions spec;
  launcher::RunOptions run;
  launcher::PrecompileOptions precompile;
  launcher::SubmitOptions submit;
  launcher::ScaleOptions scale;
  launcher::PlanOptions plan;
  launcher::CalibrateOptions calibrate;
  launcher::RenderOptions render;
  launcher::LogsOptions logs;
  launcher::DataOptions data;
  launcher::ExportOptions exported;
  launcher::ClusterOptions cluster;
  std::string run_name, shell;
};

void add_common(CLI::App& verb, launcher::CommonOptions& common, bool json) {
  if (json) verb.add_flag("--json", common.json, "Machine-readable output");
  verb.add_flag("--verbose", common.verbose, "On an error, its whole chain of causes");
}

void add_overrides(CLI::App& verb, std::vector<std::string>& overrides) {
  verb.add_option("--set", overrides, "Override a key of the spec: section.key=value (repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_run_name(CLI::App& verb, std::string& name, launcher::CommonOptions& common, bool required) {
  verb.add_option("run", name, "A run directory, a job's name (its newest run), or a run's id")
      ->required(required);
  verb.add_option("--runs", common.runs_directory, "Where run directories are looked for")
      ->capture_default_str();
}

void add_plan_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::PlanOptions& options = arguments.plan;
  CLI::App* plan = app.add_subcommand(
      "plan", "Show ranks, batch and memory of a job, and predict its speed on machines; nothing is started");
  plan->add_option("spec", options.spec.path, "job.toml")->required();
  add_overrides(*plan, options.spec.overrides);
  plan->add_option("--machine", options.machines,
                   "Types to predict for, e.g. p4d.24xlarge,p5.48xlarge; default: [cluster] instance");
  plan->add_option("--nodes", options.nodes, "Numbers of nodes to predict for, e.g. 16,32,64,128");
  plan->add_option("--scaling", options.scaling, "strong or weak; default: the job's own")
      ->check(CLI::IsMember({"strong", "weak"}));
  plan->add_option("--software", options.software,
                   "Predict for another program's stack and its memory: smp, fsdp, torchtitan, …");
  plan->add_option("--tokens", options.tokens, "Say how long so many tokens take")
      ->check(CLI::PositiveNumber);
  plan->add_option("--dollars-per-hour", options.dollars_per_hour,
                   "Price of a node, for the cost of --tokens")
      ->check(CLI::PositiveNumber);
  plan->add_option("--plot", options.plot, "Write the scaling efficiency of --nodes as SVG to this file");
  add_common(*plan, arguments.common, true);
  plan->footer(
      "Example:\n  shardrun plan jobs/tiny-llama.toml --set resources.ranks_per_node=4\n"
      "  shardrun plan jobs/llama-2-7b-p4de.toml --nodes 16,32,64,128 --plot 7b.svg");
  plan->callback([&] { exit_code = launcher::plan(arguments.plan, arguments.common); });
}

void add_calibrate_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::CalibrateOptions& options = arguments.calibrate;
  CLI::App* verb = app.add_subcommand(
      "calibrate",
      "Measure this machine or a job's cluster, for predictions; say how far the last ones were off");
  verb->add_option("spec", options.spec.path,
                   "job.toml, whose nodes, ranks and queue are measured; default: this machine");
  add_overrides(*verb, options.spec.overrides);
  verb->add_flag("--network", options.network, "Measure only the network again, and keep the rest");
  verb->add_flag("--report", options.report, "Measure nothing; show what is known");
  verb->add_option("--output", options.output, "Write to this file, in the place of where jobs look for it");
  verb->add_option("--runs", arguments.common.runs_directory,
                   "Without a job: where run directories are looked for")
      ->capture_default_str();
  add_common(*verb, arguments.common, true);
  verb->footer(
      "Takes about a minute. Nothing else should run on the nodes.\nExample:\n  shardrun calibrate\n"
      "  shardrun calibrate jobs/four-ranks.toml --set resources.nodes=4");
  verb->callback([&] { exit_code = launcher::calibrate(arguments.calibrate, arguments.common); });
}

void add_spec_verbs(CLI::App& app, Arguments& arguments, int& exit_code) {
  CLI::App* validate = app.add_subcommand("validate", "Check job specs; nothing is started");
  validate->add_option("spec", arguments.paths, "job.toml files")->required();
  add_overrides(*validate, arguments.spec.overrides);
  add_common(*validate, arguments.common, false);
  validate->footer("Example:\n  shardrun validate jobs/*.toml");
  validate->callback(
      [&] { exit_code = launcher::validate(arguments.paths, arguments.spec.overrides, arguments.common); });

  CLI::App* doctor = app.add_subcommand(
      "doctor", "Look for what will hurt jobs on this machine: versions, variables, ports, limits");
  doctor->add_option("spec", arguments.spec.path, "job.toml, whose [environment] is looked at, too");
  add_overrides(*doctor, arguments.spec.overrides);
  add_common(*doctor, arguments.common, false);
  doctor->footer(
      "[fault_tolerance] preflight looks at the variables on every node of a job.\nExample:\n  shardrun "
      "doctor jobs/llama-2-7b-p5.toml");
  doctor->callback([&] { exit_code = launcher::doctor(arguments.spec, arguments.common); });

  add_plan_verb(app, arguments, exit_code);
  add_calibrate_verb(app, arguments, exit_code);
}

void add_start_verbs(CLI::App& app, Arguments& arguments, int& exit_code) {
  CLI::App* run = app.add_subcommand("run", "Run a job here: on this machine, or on this Slurm allocation");
  CLI::Option* spec = run->add_option("spec", arguments.run.spec.path, "job.toml");
  CLI::Option* directory =
      run->add_option("--run-directory", arguments.run.run_directory, "Start what `submit` prepared")
          ->group("");
  spec->excludes(directory);
  add_overrides(*run, arguments.run.spec.overrides);
  run->add_flag("--dry-run", arguments.run.dry_run, "Print what would be run; start nothing");
  run->add_flag("--quiet", arguments.run.quiet, "Show only the end");
  add_common(*run, arguments.common, true);
  run->footer("Example:\n  shardrun run jobs/tiny-llama.toml --set optimizer.steps=50");
  run->callback([&, spec, directory] {
    if (spec->count() + directory->count() == 0) {
      exit_code = usage_error("run needs a job spec, e.g. shardrun run jobs/tiny-llama.toml");
      return;
    }
    exit_code = launcher::run(arguments.run, arguments.common);
  });

  CLI::App* precompile =
      app.add_subcommand("precompile", "Fill a job's cache of compiled code, without training");
  precompile->add_option("spec", arguments.precompile.spec.path, "job.toml")->required();
  add_overrides(*precompile, arguments.precompile.spec.overrides);
  precompile->add_flag("--dry-run", arguments.precompile.dry_run, "Print what would be run; start nothing");
  precompile->add_flag("--quiet", arguments.precompile.quiet, "Show only the end");
  add_common(*precompile, arguments.common, true);
  precompile->footer("Example:\n  shardrun precompile jobs/bert-large-trn1.toml");
  precompile->callback([&] { exit_code = launcher::precompile(arguments.precompile, arguments.common); });

  CLI::App* submit = app.add_subcommand("submit", "Submit a job to Slurm with sbatch");
  submit->add_option("spec", arguments.submit.spec.path, "job.toml")->required();
  add_overrides(*submit, arguments.submit.spec.overrides);
  submit->add_flag("--dry-run", arguments.submit.dry_run, "Print the script and the command; submit nothing");
  add_common(*submit, arguments.common, true);
  submit->footer(
      "Example:\n  shardrun submit jobs/four-ranks.toml --set resources.nodes=4 "
      "--set resources.ranks_per_node=1");
  submit->callback([&] { exit_code = launcher::submit(arguments.submit, arguments.common); });
}

void add_scale_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::ScaleOptions& options = arguments.scale;
  CLI::App* scale =
      app.add_subcommand("scale", "Show a job's batch on several numbers of nodes, and measure it there");
  CLI::Option* spec = scale->add_option("spec", options.spec.path, "job.toml");
  CLI::Option* nodes = scale->add_option("--nodes", options.nodes, "Numbers of nodes, e.g. 1,2,4 or 1-8,16");
  scale->add_option("--scaling", options.scaling, "strong or weak; default: the job's own")
      ->check(CLI::IsMember({"strong", "weak"}));
  add_overrides(*scale, options.spec.overrides);
  scale->add_flag("--run", options.run,
                  "Submit one Slurm array with a run for each, wait, and print the efficiency");
  scale->add_flag("--dry-run", options.dry_run,
                  "With --run: print the script and the commands; submit nothing");
  CLI::Option* report =
      scale->add_option("--report", options.report, "Wait for a sweep submitted before: its folder");
  report->excludes(spec)->excludes(nodes);
  add_common(*scale, arguments.common, true);
  scale->footer("Example:\n  shardrun scale jobs/bert-large.toml --nodes 1,2,4,8,16,32,64,128,256");
  scale->callback([&, spec, nodes, report] {
    if (report->count() == 0 && (spec->count() == 0 || nodes->count() == 0)) {
      exit_code =
          usage_error("scale needs a job spec and --nodes, e.g. shardrun scale job.toml --nodes 1,2,4");
      return;
    }
    exit_code = launcher::scale(arguments.scale, arguments.common);
  });
}

void add_run_verbs(CLI::App& app, Arguments& arguments, int& exit_code) {
  CLI::App* status = app.add_subcommand("status", "List runs, or show one");
  add_run_name(*status, arguments.run_name, arguments.common, false);
  add_common(*status, arguments.common, true);
  status->footer("Example:\n  shardrun status tiny-llama");
  status->callback([&] { exit_code = launcher::status(arguments.run_name, arguments.common); });

  CLI::App* logs = app.add_subcommand("logs", "Show the logs of all nodes of a run, in time order");
  add_run_name(*logs, arguments.logs.run, arguments.common, true);
  logs->add_flag("-f,--follow", arguments.logs.follow, "Go on until the run ends");
  logs->add_option("--rank", arguments.logs.rank, "Only this global rank")->check(CLI::NonNegativeNumber);
  logs->add_option("--node", arguments.logs.node, "Only this node");
  add_common(*logs, arguments.common, false);
  logs->footer("Example:\n  shardrun logs -f tiny-llama --rank 0");
  logs->callback([&] { exit_code = launcher::logs(arguments.logs, arguments.common); });

  CLI::App* top = app.add_subcommand(
      "top", "Watch the ranks of a run: state, step, time, memory, last line; q leaves it running");
  add_run_name(*top, arguments.run_name, arguments.common, true);
  add_common(*top, arguments.common, true);
  top->footer("Where the output is no terminal, it shows them once.\nExample:\n  shardrun top tiny-llama");
  top->callback([&] { exit_code = launcher::top(arguments.run_name, arguments.common); });

  CLI::App* explain = app.add_subcommand(
      "explain", "Tell what happened to a run: each attempt, its first cause, what followed");
  add_run_name(*explain, arguments.run_name, arguments.common, true);
  add_common(*explain, arguments.common, true);
  explain->footer("Example:\n  shardrun explain tiny-llama");
  explain->callback([&] { exit_code = launcher::explain(arguments.run_name, arguments.common); });

  CLI::App* cancel = app.add_subcommand("cancel", "Stop a run: its ranks are asked to checkpoint and end");
  add_run_name(*cancel, arguments.run_name, arguments.common, true);
  add_common(*cancel, arguments.common, false);
  cancel->footer("Example:\n  shardrun cancel tiny-llama");
  cancel->callback([&] { exit_code = launcher::cancel(arguments.run_name, arguments.common); });

  CLI::App* results = app.add_subcommand("results", "Show what came out of a run");
  add_run_name(*results, arguments.run_name, arguments.common, true);
  add_common(*results, arguments.common, true);
  results->footer("Example:\n  shardrun results tiny-llama --json");
  results->callback([&] { exit_code = launcher::results(arguments.run_name, arguments.common); });
}

void add_data_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::DataOptions& options = arguments.data;
  CLI::App* data = app.add_subcommand("data", "Turn text into token files for [data] files and validation");
  data->add_option("files", options.files, "Text files, or .jsonl with text or messages in each line")
      ->required();
  data->add_option("--tokenizer", options.tokenizer,
                   "byte, the path of a SentencePiece .model, or the path of BERT's vocab.txt")
      ->required();
  data->add_option("--output", options.output, "Folder for train.tokens and validation.tokens")->required();
  data->add_option("--validation", options.validation, "Share of the documents to hold out, e.g. 0.01")
      ->capture_default_str();
  data->add_option("--seed", options.seed, "Decides which documents are held out")->capture_default_str();
  data->add_option("--template", options.chat_template, "How conversations become text: llama2 or chatml");
  data->add_flag("--split-on-blank-lines", options.split_on_blank_lines,
                 "Each paragraph of a text file is a document, not the whole file");
  add_common(*data, arguments.common, true);
  data->footer("Example:\n  shardrun data --tokenizer byte --validation 0.1 --output tokens *.txt");
  data->callback([&] { exit_code = launcher::data(arguments.data, arguments.common); });
}

void add_export_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::ExportOptions& options = arguments.exported;
  CLI::App* verb = app.add_subcommand("export", "Turn a checkpoint into safetensors that transformers load");
  verb->add_option("checkpoint", options.checkpoint,
                   "A run (its newest checkpoint), a folder of checkpoints, or one of them")
      ->required();
  verb->add_option("--output", options.output, "Folder to make")->required();
  verb->add_option("--dtype", options.dtype, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  verb->add_option("--max-shard-size", options.max_shard_bytes, "Largest file, e.g. 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->default_str("5GB");
  verb->add_option("--runs", arguments.common.runs_directory, "Where run directories are looked for")
      ->capture_default_str();
  add_common(*verb, arguments.common, true);
  verb->footer("Example:\n  shardrun export tiny-llama --output tiny-llama-hf");
  verb->callback([&] { exit_code = launcher::export_weights(arguments.exported, arguments.common); });
}

void add_render_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::RenderOptions& options = arguments.render;
  CLI::App* render = app.add_subcommand("render", "Turn a job into a manifest of Kubernetes");
  render->add_option("spec", options.spec.path, "job.toml")->required();
  render->add_option("--to", options.to, "kubernetes")->required()->check(CLI::IsMember({"kubernetes"}));
  render->add_option("--image", options.image, "The container image of all pods; default: [container] image");
  render->add_option("--claim", options.claim, "A PersistentVolumeClaim that all pods may write")->required();
  render->add_option("--mount", options.mount, "Where it is mounted; the job runs there")
      ->capture_default_str();
  render->add_option("--namespace", options.name_space, "Of Kubernetes")->capture_default_str();
  render->add_option("--kind", options.kind, "auto: a command is a PyTorchJob, the trainer an MPIJob")
      ->check(CLI::IsMember({"auto", "mpijob", "pytorchjob"}))
      ->capture_default_str();
  add_overrides(*render, options.spec.overrides);
  add_common(*render, arguments.common, false);
  render->footer(
      "Example:\n  shardrun render --to kubernetes jobs/llama-2-7b-p5.toml --image "
      "registry.example.com/shardrun "
      "--claim fsx | kubectl apply -f -");
  render->callback([&] { exit_code = launcher::render(arguments.render, arguments.common); });
}

void add_pcluster_options(CLI::App& verb, launcher::ClusterOptions& options, bool may_wait) {
  verb.add_option("--region", options.region, "An AWS region; default: AWS's own configuration");
  verb.add_option("--timeout", options.timeout_seconds, "Seconds that pcluster may take to answer")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  if (!may_wait) return;
  verb.add_flag("--wait", options.wait, "Show progress until the end");
  verb.add_option("--every", options.every_seconds, "With --wait: seconds between two looks")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

void add_pcluster_verbs(CLI::App& cluster, Arguments& arguments, int& exit_code) {
  launcher::ClusterOptions& options = arguments.cluster;
  CLI::App* create = cluster.add_subcommand("create", "Make a cluster with the installed pcluster");
  create->add_option("spec", options.spec, "A cluster's TOML, e.g. of cluster-configs")->required();
  create->add_flag("--dry-run", options.dry_run, "Print the configuration and the command; make nothing");
  add_pcluster_options(*create, options, /*may_wait=*/true);
  add_common(*create, arguments.common, true);
  create->footer("Example:\n  shardrun cluster create cluster-configs/p5.toml --wait");
  create->callback([&] { exit_code = launcher::cluster_create(arguments.cluster, arguments.common); });

  CLI::App* describe =
      cluster.add_subcommand("describe", "Show a cluster: its status, head node and failures");
  describe->add_option("name", options.name, "A cluster's name")->required();
  add_pcluster_options(*describe, options, /*may_wait=*/true);
  add_common(*describe, arguments.common, true);
  describe->footer("Example:\n  shardrun cluster describe p5 --region us-east-1");
  describe->callback([&] { exit_code = launcher::cluster_describe(arguments.cluster, arguments.common); });

  CLI::App* list = cluster.add_subcommand("list", "List the clusters of a region");
  add_pcluster_options(*list, options, /*may_wait=*/false);
  add_common(*list, arguments.common, false);
  list->footer("Example:\n  shardrun cluster list --region us-east-1");
  list->callback([&] { exit_code = launcher::cluster_list(arguments.cluster, arguments.common); });

  CLI::App* remove = cluster.add_subcommand("delete", "Delete a cluster");
  remove->add_option("name", options.name, "A cluster's name")->required();
  remove->add_flag("--yes", options.yes, "Delete it indeed");
  remove->add_flag("--dry-run", options.dry_run, "Print the command; delete nothing");
  add_pcluster_options(*remove, options, /*may_wait=*/true);
  add_common(*remove, arguments.common, true);
  remove->footer("Example:\n  shardrun cluster delete p5 --yes --wait");
  remove->callback([&] { exit_code = launcher::cluster_delete(arguments.cluster, arguments.common); });

  CLI::App* queues = cluster.add_subcommand("queues", "Show the queues of the Slurm cluster at hand");
  add_common(*queues, arguments.common, false);
  queues->footer("Example:\n  shardrun cluster queues");
  queues->callback([&] { exit_code = launcher::cluster_queues(arguments.common); });
}

void add_cluster_verb(CLI::App& app, Arguments& arguments, int& exit_code) {
  launcher::ClusterOptions& options = arguments.cluster;
  CLI::App* cluster =
      app.add_subcommand("cluster", "Describe, make and look at clusters of AWS ParallelCluster");
  cluster->require_subcommand(1);
  cluster->footer("Example:\n  shardrun cluster render cluster-configs/p5.toml");

  CLI::App* render = cluster->add_subcommand("render", "Turn a cluster's TOML into pcluster's configuration");
  render->add_option("spec", options.spec, "A cluster's TOML, e.g. of cluster-configs")->required();
  render->add_option("--output", options.output, "A file in the place of the terminal");
  add_common(*render, arguments.common, false);
  render->footer("Example:\n  shardrun cluster render cluster-configs/p5.toml --output p5.yaml");
  render->callback([&] { exit_code = launcher::cluster_render(arguments.cluster, arguments.common); });
  add_pcluster_verbs(*cluster, arguments, exit_code);
}

void add_completion_options(const CLI::App& verb, std::vector<std::string>& options) {
  const auto add = [&options](const std::string& name) {
    if (std::find(options.begin(), options.end(), name) == options.end()) options.push_back(name);
  };
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) add("--" + name);
    for (const std::string& name : option->get_snames()) add("-" + name);
  }
}

// The verbs and their options as the completion scripts need them, from the very tree that parses.
std::vector<launcher::CompletionVerb> completion_verbs(const CLI::App& app) {
  std::vector<launcher::CompletionVerb> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    launcher::CompletionVerb entry{verb->get_name(), verb->get_description(), {}, {}};
    add_completion_options(*verb, entry.options);
    for (const CLI::App* below : verb->get_subcommands(nullptr)) {
      entry.verbs.push_back(below->get_name());
      add_completion_options(*below, entry.options);
    }
    verbs.push_back(std::move(entry));
  }
  return verbs;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  int exit_code = contract::kExitDone;
  CLI::App app(
      "shardrun launches training jobs on Slurm clusters and on one machine, and trains sharded models.",
      "shardrun");
  app.require_subcommand(1);
  app.set_version_flag("--version", "shardrun " SHARDRUN_VERSION);
  app.footer("Example:\n  shardrun run jobs/tiny-llama.toml\nEach verb has its own --help.");
  add_spec_verbs(app, arguments, exit_code);
  add_start_verbs(app, arguments, exit_code);
  add_scale_verb(app, arguments, exit_code);
  add_run_verbs(app, arguments, exit_code);
  add_data_verb(app, arguments, exit_code);
  add_export_verb(app, arguments, exit_code);
  add_render_verb(app, arguments, exit_code);
  add_cluster_verb(app, arguments, exit_code);
  CLI::App* completion = app.add_subcommand("completion", "Print a completion script for a shell");
  completion->add_option("shell", arguments.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer("Example:\n  source <(shardrun completion bash)");
  completion->callback([&] {
    std::fputs(launcher::completion_script(arguments.shell, completion_verbs(app)).c_str(), stdout);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what());
  }
  return exit_code;
}
