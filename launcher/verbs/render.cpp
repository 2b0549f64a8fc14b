#include <map>

#include <fmt/format.h>

#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/verbs/command_line.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

struct RenderOptions {
  SpecOptions spec;
  std::string to = "kubernetes";
  std::string kind = "auto";
  KubernetesOptions manifest;
};

base::Result<std::string> render_job(const RenderOptions& options) {
  std::vector<std::string> overrides = options.spec.overrides;
  overrides.emplace_back("cluster.scheduler=mpirun");  // what the launcher pod runs with
  ASSIGN_OR_RETURN(auto loaded, load_spec(options.spec.path, overrides));
  ASSIGN_OR_RETURN(auto machine, machine_of(loaded.spec));
  ASSIGN_OR_RETURN(auto context, plan_context(loaded.spec, {}, loaded.overrides, "mpirun"));
  ASSIGN_OR_RETURN(auto plan, solve_launch_plan(loaded.spec, context));
  static const std::map<std::string, KubernetesKind> kKinds = {{"mpijob", KubernetesKind::kMpiJob},
                                                               {"pytorchjob", KubernetesKind::kPyTorchJob},
                                                               {"trainjob", KubernetesKind::kTrainJob},
                                                               {"auto", KubernetesKind::kAuto}};
  KubernetesOptions to = options.manifest;
  to.kind = kKinds.at(options.kind);
  return render_kubernetes(loaded.spec, loaded.text, plan, machine ? &*machine : nullptr, to);
}

base::Result<int> render(const RenderOptions& options) {
  ASSIGN_OR_RETURN(const auto text, render_job(options));
  print_text("{}", text);
  return contract::kExitDone;
}

}  // namespace

void add_render(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RenderOptions>();
  CLI::App* verb = app.add_subcommand("render", "Turn a job into a manifest of Kubernetes");
  verb->add_option("spec", options.spec.path, "job.toml")->required();
  verb->add_option("--to", options.to, "kubernetes")->required()->check(CLI::IsMember({"kubernetes"}));
  verb->add_option("--image", options.manifest.image,
                   "The container image of all pods; default: [container] image");
  verb->add_option("--claim", options.manifest.claim, "A PersistentVolumeClaim that all pods may write")
      ->required();
  verb->add_option("--mount", options.manifest.mount, "Where it is mounted; the job runs there")
      ->capture_default_str();
  verb->add_option("--namespace", options.manifest.name_space, "Of Kubernetes")->capture_default_str();
  verb->add_option("--queue", options.manifest.queue,
                   "A LocalQueue of Kueue, which starts the job when all of it fits");
  verb->add_option("--runtime", options.manifest.runtime, "With --kind trainjob: the ClusterTrainingRuntime")
      ->capture_default_str();
  verb->add_option("--kind", options.kind,
                   "auto: a command is a PyTorchJob, the trainer an MPIJob; trainjob: of Kubeflow Trainer 2")
      ->check(CLI::IsMember({"auto", "mpijob", "pytorchjob", "trainjob"}))
      ->capture_default_str();
  add_overrides(*verb, options.spec.overrides);
  add_common(*verb, line, false);
  verb->footer(
      "Example:\n  shardrun render --to kubernetes jobs/llama-2-7b-p5.toml --image "
      "registry.example.com/shardrun "
      "--claim fsx | kubectl apply -f -");
  verb->callback([&] { line.end(render(options)); });
}

}  // namespace shardrun::launcher
