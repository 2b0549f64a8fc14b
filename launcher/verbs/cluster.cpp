#include "launcher/verbs/command_line.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/cluster/built_in.h"
#include "launcher/cluster/bundle_upload.h"
#include "launcher/cluster/network.h"
#include "launcher/cluster/pcluster_command.h"
#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/queues.h"
#include "launcher/cluster/rules.h"
#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Result;

struct ClusterOptions {
  std::string spec;         // a cluster's TOML, for render and create
  std::string output;       // of render: a file in the place of stdout
  std::string name;         // of a cluster, for describe and delete
  std::string region;       // empty: pcluster's own choice
  std::string bundle;       // of create: an archive of shardrun that is uploaded for the nodes; may be empty
  std::string zone;         // of create: where its network is made; empty: the spec's subnets are there
  bool network = false;     // of update: it lies in the network that create made; of delete: that goes, too
  std::string bucket, key;  // of export-logs and ssh
  std::vector<std::string> words;  // of ssh and fleet
  bool wait = false;               // show progress until the end
  bool dry_run = false;
  bool yes = false;           // delete indeed
  int every_seconds = 15;     // between two looks of wait
  int timeout_seconds = 300;  // for each answer of pcluster
};

struct Rendered {
  ClusterConfig config;
  std::string yaml;
};

Result<Rendered> render(const std::string& path) {
  ASSIGN_OR_RETURN(auto config, load_cluster(path));
  std::string yaml = render_pcluster(config, built_in_catalogue(), path);
  return Rendered{std::move(config), std::move(yaml)};
}

PclusterCall call_of(const ClusterOptions& options) {
  PclusterCall call;
  call.region = options.region;
  call.limit = std::chrono::seconds(options.timeout_seconds);
  call.waiting = [](int seconds) {
    say_error(fmt::format("shardrun: pcluster has not answered for {} s\n", seconds));
  };
  return call;
}

// A file of ours for pcluster to read, gone with this object.
class ScratchFile {
 public:
  static Result<ScratchFile> write(const std::string& text) {
    const char* folder = std::getenv("TMPDIR");
    std::string path =
        std::string(folder != nullptr && *folder == '/' ? folder : "/tmp") + "/shardrun-XXXXXX";
    base::UniqueFd file(::mkstemp(path.data()));
    if (!file) return base::errno_error(base::Code::kIo, path, errno);
    ScratchFile scratch(path);
    RETURN_IF_ERROR(base::write_all(file.get(), text, path));
    return scratch;
  }
  ScratchFile(ScratchFile&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchFile& operator=(ScratchFile&&) = delete;
  ~ScratchFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<ClusterState> describe(const std::string& name, const PclusterCall& call) {
  ASSIGN_OR_RETURN(auto text, call_pcluster(describe_command(name, call), name, call));
  return parse_cluster_state(text);
}

// Prints each change until nothing is in progress. A cluster that is gone is what a deletion ends with.
Result<int> follow(const std::string& name, bool until_gone, const ClusterOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  std::string last;
  for (;;) {
    const auto state = describe(name, call_of(options));
    if (!state && until_gone && state.error().code() == base::Code::kNotFound) {
      print_text("cluster {} is deleted\n", name);
      return contract::kExitDone;
    }
    if (!state) return state.error();
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began).count();
    if (state->status != last)
      print_text("{:>3}:{:02}  {}: {}\n", seconds / 60, seconds % 60, name, status_words(state->status));
    std::fflush(stdout);
    last = state->status;
    if (!state->in_progress()) {
      print_text("{}", cluster_text(*state));
      return state->failed() ? contract::kExitInfrastructure : contract::kExitDone;
    }
    std::this_thread::sleep_for(std::chrono::seconds(options.every_seconds));
  }
}

// What create and delete have in common: ask, show the answer, follow it where that was asked for.
Result<int> ask(const std::vector<std::string>& argv, const std::string& name, bool until_gone,
                const ClusterOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto answer, call_pcluster(argv, name, call_of(options)));
  ASSIGN_OR_RETURN(const auto state, parse_cluster_state(answer));
  if (common.json) print_text("{}", answer);
  if (!common.json && !options.wait) {
    print_text("{}", cluster_text(state));
    print_text("look again with `shardrun cluster describe {}`, or follow with --wait\n", name);
  }
  for (const std::string& note : state.notes) {
    if (options.wait) print_text("{}\n", note);
  }
  return options.wait ? follow(name, until_gone, options) : contract::kExitDone;
}

Result<int> cluster_render(const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const auto rendered, render(options.spec));
  if (options.output.empty()) {
    print_text("{}", rendered.yaml);
    return contract::kExitDone;
  }
  RETURN_IF_ERROR(base::write_file_atomically(options.output, rendered.yaml));
  return contract::kExitDone;
}

constexpr auto kUploadLimit = std::chrono::hours(1);

// Makes the cluster's nodes take the bundle: uploads it with their script, or only says so, and changes `rendered`.
Result<void> upload_bundle(const ClusterOptions& options, Rendered& rendered) {
  ASSIGN_OR_RETURN(const auto summed,
                   base::run_command({"sha256sum", "--", options.bundle}, "", std::chrono::minutes(10)));
  const std::string hash = summed.out.substr(0, summed.out.find(' '));
  ASSIGN_OR_RETURN(const auto script, ScratchFile::write(std::string(built_in_node_script())));
  ASSIGN_OR_RETURN(const auto upload,
                   plan_bundle_upload(rendered.config, options.bundle, hash,
                                      options.dry_run ? "<on-node.sh>" : script.path(), options.region));
  for (const std::vector<std::string>& command : upload.commands) {
    if (options.dry_run) {
      print_text("{}\n", fmt::join(command, " "));
      continue;
    }
    auto done = base::run_command(command, "", kUploadLimit);
    if (!done && done.error().code() == base::Code::kNotFound)
      return base::Error(base::Code::kNotFound,
                         "--bundle: no aws command is installed, which uploads it: pip install awscli, or "
                         "upload it yourself "
                         "(docs/clusters.md)");
    if (!done) return std::move(done).error().context("uploading to " + command[5]);
    print_text("uploaded {}\n", command[5]);
  }
  rendered.config.on_node_configured = upload.script;
  rendered.yaml = render_pcluster(rendered.config, built_in_catalogue(), options.spec);
  return {};
}

// Runs a command of `aws`, or prints it in a dry run. Returns what it wrote.
Result<std::string> call_aws(const std::vector<std::string>& command, const ClusterOptions& options) {
  if (options.dry_run) {
    print_text("{}\n", fmt::join(command, " "));
    return std::string();
  }
  auto done = base::run_command(command, "", kUploadLimit);
  if (!done && done.error().code() == base::Code::kNotFound)
    return base::Error(base::Code::kNotFound,
                       "no aws command is installed; install it with `pip install awscli`");
  if (!done) return std::move(done).error();
  return std::move(done->out);
}

// Puts the cluster of `rendered` into the network that was made for it; a dry run only says how it would find it.
Result<void> enter_network(const ClusterOptions& options, Rendered& rendered) {
  const std::string& name = rendered.config.name;
  auto outputs = call_aws(ask_network_command(name, options.region), options);
  if (!outputs) return std::move(outputs).error().context("--network");
  Network network{"<PublicSubnetId>", "<PrivateSubnetId>"};
  if (!options.dry_run) {
    auto parsed = parse_network(*outputs);
    if (!parsed) return std::move(parsed).error().context("--network");
    network = std::move(parsed).value();
    print_text("subnets {} and {}\n", network.public_subnet, network.private_subnet);
  }
  use_network(network, rendered.config);
  rendered.yaml = render_pcluster(rendered.config, built_in_catalogue(), options.spec);
  return {};
}

// Makes the network of `rendered` in options.zone, or only says how, and puts the cluster into it.
Result<void> make_network(const ClusterOptions& options, Rendered& rendered) {
  const std::string& name = rendered.config.name;
  ASSIGN_OR_RETURN(const auto file, ScratchFile::write(std::string(built_in_network())));
  const std::string from = options.dry_run ? "<network.yaml>" : file.path();
  if (!options.dry_run) print_text("making the network {} in {}\n", network_stack(name), options.zone);
  std::fflush(stdout);
  auto made = call_aws(make_network_command(name, options.zone, from, options.region), options);
  if (!made) return std::move(made).error().context("--network");
  return enter_network(options, rendered);
}

// Makes or changes a cluster by `command`. What create put into the configuration beside its TOML, an update must have again:
// ParallelCluster refuses to change it.
Result<int> cluster_apply(decltype(create_command)& command, const ClusterOptions& options,
                          const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto rendered, render(options.spec));
  const std::string& name = rendered.config.name;
  ClusterOptions own = options;
  if (own.region.empty()) own.region = rendered.config.region;
  if (!own.zone.empty()) RETURN_IF_ERROR(make_network(own, rendered));
  if (own.network) RETURN_IF_ERROR(enter_network(own, rendered));
  if (!own.bundle.empty()) RETURN_IF_ERROR(upload_bundle(own, rendered));
  if (options.dry_run) {
    print_text("{}\n{}\n", rendered.yaml,
               fmt::join(command(name, "<the configuration above>", call_of(own)), " "));
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(const auto file, ScratchFile::write(rendered.yaml));
  return ask(command(name, file.path(), call_of(own)), name, /*until_gone=*/false, own, common);
}

Result<int> cluster_describe(const ClusterOptions& options, const CommonOptions& common) {
  if (options.wait) return follow(options.name, /*until_gone=*/false, options);
  const PclusterCall call = call_of(options);
  ASSIGN_OR_RETURN(const auto answer,
                   call_pcluster(describe_command(options.name, call), options.name, call));
  ASSIGN_OR_RETURN(const auto state, parse_cluster_state(answer));
  print_text("{}", common.json ? answer : cluster_text(state));
  return contract::kExitDone;
}

Result<int> cluster_list(const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const auto clusters, list_clusters(call_of(options)));
  print_text("{}", cluster_table(clusters));
  return contract::kExitDone;
}

Result<int> cluster_delete(const ClusterOptions& options, const CommonOptions& common) {
  const std::vector<std::string> argv = delete_command(options.name, call_of(options));
  if (options.dry_run) {
    print_text("{}\n", fmt::join(argv, " "));
    if (options.network) (void)call_aws(delete_network_command(options.name, options.region), options);
    return contract::kExitDone;
  }
  if (options.network && !options.wait)
    return base::Error(base::Code::kInvalid,
                       "--network: the cluster lies in it until it is gone; write --wait, too");
  if (!options.yes) {
    return base::Error(
        base::Code::kRefused,
        fmt::format("this deletes cluster {} with its nodes and every file system that is not kept; "
                    "repeat it with --yes",
                    options.name));
  }
  ASSIGN_OR_RETURN(const int status, ask(argv, options.name, /*until_gone=*/true, options, common));
  if (status != contract::kExitDone || !options.network) return status;
  RETURN_IF_ERROR(call_aws(delete_network_command(options.name, options.region), options));
  print_text("network {} is being deleted\n", network_stack(options.name));
  return contract::kExitDone;
}

// What pcluster answers to these is shown as it is.
Result<int> pass_on(const std::vector<std::string>& argv, const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const auto answer, call_pcluster(argv, options.name, call_of(options)));
  print_text("{}", base::visible(answer));
  return contract::kExitDone;
}

Result<int> cluster_ssh(const ClusterOptions& options) {
  return become(ssh_command(options.name, options.key, options.words, call_of(options)));
}

Result<int> cluster_queues() {
  ASSIGN_OR_RETURN(const auto answer, base::run_command(queues_command()));
  ASSIGN_OR_RETURN(const auto queues, parse_queues(answer.out));
  print_text("{}", queues_table(queues));
  return contract::kExitDone;
}

void add_pcluster_options(CLI::App& verb, ClusterOptions& options, bool may_wait) {
  verb.add_option("--region", options.region, "An AWS region; default: AWS's own configuration");
  verb.add_option("--timeout", options.timeout_seconds, "Seconds that pcluster may take to answer")
      ->check(in_range(1, 86400))
      ->capture_default_str();
  if (!may_wait) return;
  verb.add_flag("--wait", options.wait, "Show progress until the end");
  verb.add_option("--every", options.every_seconds, "With --wait: seconds between two looks")
      ->check(in_range(1, 3600))
      ->capture_default_str();
}

// What keeps a cluster running: other settings, its nodes, a shell, its logs.
void add_upkeep(CLI::App& cluster, ClusterOptions& options, CommandLine& line) {
  CLI::App* update = cluster.add_subcommand("update", "Change a cluster to what its TOML says now");
  update->add_option("spec", options.spec, "A cluster's TOML")->required();
  update->add_flag("--dry-run", options.dry_run, "Print the configuration and the command; change nothing");
  update->add_flag("--network", options.network,
                   "The cluster lies in the network that create --network made");
  update->add_option("--bundle", options.bundle, "The archive that create --bundle was given, the same one")
      ->check(CLI::ExistingFile);
  add_pcluster_options(*update, options, /*may_wait=*/true);
  add_common(*update, line, true);
  update->footer(
      "Example:\n  shardrun cluster update p5.toml --network --bundle shardrun-0.1.0-x86_64.tar.xz --wait");
  update->callback([&] { line.end(cluster_apply(update_command, options, line.common)); });

  CLI::App* fleet = cluster.add_subcommand("fleet", "Start or stop the compute nodes of a cluster");
  fleet->add_option("name", options.name, "A cluster's name")->required();
  fleet->add_option("state", options.words, "start or stop")
      ->required()
      ->expected(1)
      ->check(CLI::IsMember({"start", "stop"}));
  add_pcluster_options(*fleet, options, /*may_wait=*/false);
  add_common(*fleet, line, false);
  fleet->footer("Example:\n  shardrun cluster fleet p5 stop && shardrun cluster update p5.toml --wait");
  fleet->callback([&] {
    const bool start = options.words.front() == "start";
    line.end(pass_on(fleet_command(options.name, start, call_of(options)), options));
  });

  CLI::App* logs = cluster.add_subcommand("export-logs", "Bring the logs of all nodes into a bucket");
  logs->add_option("name", options.name, "A cluster's name")->required();
  logs->add_option("--bucket", options.bucket, "A bucket that you may write")->required();
  add_pcluster_options(*logs, options, /*may_wait=*/false);
  add_common(*logs, line, false);
  logs->footer("Example:\n  shardrun cluster export-logs p5 --bucket my-bucket");
  logs->callback(
      [&] { line.end(pass_on(logs_command(options.name, options.bucket, call_of(options)), options)); });

  CLI::App* ssh = cluster.add_subcommand("ssh", "A shell on the head node of a cluster, or a command there");
  ssh->add_option("name", options.name, "A cluster's name")->required();
  ssh->add_option("command", options.words, "Behind --: a command in the place of the shell");
  ssh->add_option("--key", options.key, "The file of the SSH key");
  ssh->add_option("--region", options.region, "An AWS region; default: AWS's own configuration");
  add_common(*ssh, line, false);
  ssh->footer("Example:\n  shardrun cluster ssh p5 --key ~/.ssh/my-key.pem -- sinfo");
  ssh->callback([&] { line.end(cluster_ssh(options)); });
}

void add_pcluster_verbs(CLI::App& cluster, ClusterOptions& options, CommandLine& line) {
  CLI::App* create = cluster.add_subcommand("create", "Make a cluster with the installed pcluster");
  create->add_option("spec", options.spec, "A cluster's TOML, e.g. of cluster-configs")->required();
  create->add_flag("--dry-run", options.dry_run, "Print the configuration and the command; make nothing");
  add_pcluster_options(*create, options, /*may_wait=*/true);
  add_common(*create, line, true);
  create
      ->add_option("--bundle", options.bundle,
                   "An archive of shardrun (docs/install.md): uploaded beside the nodes' script, with it, "
                   "and installed by them")
      ->check(CLI::ExistingFile);
  create->add_option(
      "--network", options.zone,
      "An availability zone: makes a VPC with subnets and NAT gateway there, in the place of the "
      "spec's subnets");
  create->footer(
      "Example:\n  shardrun cluster create cluster-configs/p5.toml --bundle shardrun-0.1.0-x86_64.tar.xz "
      "--wait");
  create->callback([&] { line.end(cluster_apply(create_command, options, line.common)); });

  CLI::App* describe =
      cluster.add_subcommand("describe", "Show a cluster: its status, head node and failures");
  describe->add_option("name", options.name, "A cluster's name")->required();
  add_pcluster_options(*describe, options, /*may_wait=*/true);
  add_common(*describe, line, true);
  describe->footer("Example:\n  shardrun cluster describe p5 --region us-east-1");
  describe->callback([&] { line.end(cluster_describe(options, line.common)); });

  CLI::App* list = cluster.add_subcommand("list", "List the clusters of a region");
  add_pcluster_options(*list, options, /*may_wait=*/false);
  add_common(*list, line, false);
  list->footer("Example:\n  shardrun cluster list --region us-east-1");
  list->callback([&] { line.end(cluster_list(options)); });

  CLI::App* remove = cluster.add_subcommand("delete", "Delete a cluster");
  remove->add_option("name", options.name, "A cluster's name")->required();
  remove->add_flag("--yes", options.yes, "Delete it indeed");
  remove->add_flag("--network", options.network, "What create --network made goes, too");
  remove->add_flag("--dry-run", options.dry_run, "Print the command; delete nothing");
  add_pcluster_options(*remove, options, /*may_wait=*/true);
  add_common(*remove, line, true);
  remove->footer("Example:\n  shardrun cluster delete p5 --yes --wait");
  remove->callback([&] { line.end(cluster_delete(options, line.common)); });

  add_upkeep(cluster, options, line);

  CLI::App* queues = cluster.add_subcommand("queues", "Show the queues of the Slurm cluster at hand");
  add_common(*queues, line, false);
  queues->footer("Example:\n  shardrun cluster queues");
  queues->callback([&] { line.end(cluster_queues()); });
}

}  // namespace

void add_cluster(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<ClusterOptions>();
  CLI::App* cluster =
      app.add_subcommand("cluster", "Describe, make and look at clusters of AWS ParallelCluster");
  cluster->require_subcommand(1);
  cluster->footer("Example:\n  shardrun cluster render cluster-configs/p5.toml");

  CLI::App* render = cluster->add_subcommand("render", "Turn a cluster's TOML into pcluster's configuration");
  render->add_option("spec", options.spec, "A cluster's TOML, e.g. of cluster-configs")->required();
  render->add_option("--output", options.output, "A file in the place of the terminal");
  add_common(*render, line, false);
  render->footer("Example:\n  shardrun cluster render cluster-configs/p5.toml --output p5.yaml");
  render->callback([&] { line.end(cluster_render(options)); });
  add_pcluster_verbs(*cluster, options, line);
}

}  // namespace shardrun::launcher
