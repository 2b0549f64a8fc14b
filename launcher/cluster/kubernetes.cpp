#include "launcher/cluster/kubernetes.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/cluster/yaml.h"
#include "runtime/base/trust.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr size_t kLongestJobName = 52;  // 63 is the limit, and the operators add "-launcher-xxxxx"
constexpr int64_t kHugePagesMib = 5120;
constexpr double kMemoryForPods = 0.85;  // the node and its daemons keep the rest
constexpr int kCpusForNode = 2;

Error refuse(const std::string& place, const std::string& what, const std::string& mend) {
  return Error(Code::kInvalid, fmt::format("{}: {}; {}", place, what, mend));
}

class Manifest {
 public:
  Manifest(const spec::JobSpec& spec, const std::string& job_text, const record::LaunchPlan& plan,
           const Instance* instance, const KubernetesOptions& options)
      : spec_(spec), job_text_(job_text), plan_(plan), instance_(instance), options_(options) {}

  Result<std::string> text() const {
    RETURN_IF_ERROR(check_name());
    const bool command = !spec_.program.command.empty();
    const bool train = options_.kind == KubernetesKind::kTrainJob;
    const bool torch = train || options_.kind == KubernetesKind::kPyTorchJob ||
                       (options_.kind == KubernetesKind::kAuto && command);
    RETURN_IF_ERROR(check_container(torch));
    RETURN_IF_ERROR(torch ? check_setup() : check_secrets());
    if (!torch) return fmt::format("{}---\n{}", config_map().to_text(), mpi_job().to_text());
    if (!command)
      return refuse(spec_.origin("program.trainer"),
                    fmt::format("the built-in trainer starts through PMIx, which a {} lacks",
                                train ? "TrainJob" : "PyTorchJob"),
                    "write --kind mpijob");
    if (spec_.batch.uneven == spec::Uneven::kDistribute)
      return refuse(spec_.origin("batch.uneven"),
                    "torchrun cannot tell ranks their own share of an uneven batch",
                    "write --kind mpijob, or a batch that divides");
    if (train) RETURN_IF_ERROR(check_train_job());
    ASSIGN_OR_RETURN(auto job, train ? train_job() : pytorch_job());
    return job.to_text();
  }

 private:
  Result<void> check_name() const {
    const std::string& name = spec_.name;
    const bool clean = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    const bool begins_well = !name.empty() && name.front() >= 'a' && name.front() <= 'z';
    if (!clean || name.size() > kLongestJobName || !begins_well || name.back() == '-')
      return refuse(
          spec_.origin("name"), fmt::format("Kubernetes takes no name \"{}\"", spec::printable(name)),
          fmt::format("use at most {} small letters, digits and -, a letter first", kLongestJobName));
    return {};
  }

  Result<void> check_setup() const {
    if (spec_.program.setup.empty()) return {};
    return refuse(spec_.origin("program.setup"), "the pods of torchrun run no lines before their ranks",
                  "put what they do into the image and write --set program.setup=[], or write --kind mpijob");
  }

  // Ranks of an MPIJob are started through sshd, which gives them no variable of their pod.
  Result<void> check_secrets() const {
    for (const auto& [name, value] : spec_.environment) {
      if (value.kind == spec::EnvironmentValue::Kind::kFromVariable)
        return refuse(
            spec_.origin("environment." + name), "the workers of an MPIJob have no variables to take it from",
            fmt::format("put it into a file of the claim, and write {} = {{ from_file = \"…\" }}", name));
    }
    return {};
  }

  // A job's pods use its own image, when that is in a registry.
  std::string image() const {
    constexpr std::string_view kDocker = "docker://";
    std::string own = spec_.container.image;
    if (own.starts_with(kDocker)) own.erase(0, kDocker.size());
    const bool is_file = own.starts_with('/') || own.starts_with('.') || own.ends_with(".sif") ||
                         own.ends_with(".sqsh") || own.ends_with(".simg") ||
                         own.find("://") != std::string::npos;
    const bool is_pyxis = own.find('#') != std::string::npos;
    return options_.image.empty() && !is_file && !is_pyxis ? own : options_.image;
  }

  Result<void> check_container(bool torch) const {
    if (image().empty())
      return refuse(spec_.origin("container.image"), "no registry has the image of the pods",
                    "write --image");
    if (!spec_.container.is_given()) return {};
    if (!torch)
      return refuse(spec_.origin("container"), "the workers of an MPIJob are in their image already",
                    "remove [container] and write --image, or --kind pytorchjob");
    if (!spec_.container.mounts.empty())
      return refuse(spec_.origin("container.mounts[0]"), "a pod sees no folder of its node",
                    "remove it; the claim is mounted everywhere");
    return {};
  }

  // What the API of Kubeflow Trainer has no field for.
  Result<void> check_train_job() const {
    if (elastic())
      return refuse(spec_.origin("fault_tolerance.min_nodes"), "a TrainJob keeps its number of nodes",
                    "write --kind pytorchjob, or remove min_nodes");
    if (spec_.fault_tolerance.max_restarts > 0)
      return refuse(spec_.origin("fault_tolerance.max_restarts"),
                    "a TrainJob is restarted as its runtime says",
                    "write --kind pytorchjob, or --set fault_tolerance.max_restarts=0");
    return {};
  }

  // Whether the job goes on with fewer nodes.
  bool elastic() const {
    const int least = spec_.fault_tolerance.min_nodes;
    return least > 0 && least < plan_.nodes;
  }

  bool efa() const { return instance_ != nullptr && instance_->efa_interfaces > 0 && plan_.nodes > 1; }

  Yaml metadata(const std::string& name) const {
    return Yaml::map().set("name", name).set("namespace", options_.name_space);
  }

  // The metadata of what the queue starts.
  Yaml job_metadata() const {
    Yaml data = metadata(spec_.name);
    if (!options_.queue.empty())
      data.set("labels", Yaml::map().set("kueue.x-k8s.io/queue-name", options_.queue));
    return data;
  }

  Yaml config_map() const {
    Yaml map = Yaml::map();
    map.set("apiVersion", "v1").set("kind", "ConfigMap").set("metadata", metadata(spec_.name + "-job"));
    return map.set("data", Yaml::map().set("job.toml", Yaml::block(job_text_)));
  }

  Yaml run_policy(int restarts) const {
    Yaml policy = Yaml::map();
    policy.set("cleanPodPolicy", "Running").set("backoffLimit", restarts);
    if (spec_.resources.time_limit)
      policy.set("activeDeadlineSeconds", static_cast<int64_t>(spec_.resources.time_limit->count()));
    return policy;
  }

  // Returns what a pod asks for and is limited to; Kubernetes wants both to be the same for all of these but
  // CPUs and memory.
  Yaml resources() const {
    Yaml wanted = Yaml::map();
    if (instance_ == nullptr) {
      wanted.set("cpu", std::to_string(plan_.ranks_per_node * plan_.cpus_per_rank));
    } else {
      const auto memory = static_cast<int64_t>(static_cast<double>(instance_->memory_mib) * kMemoryForPods);
      wanted.set("cpu", std::to_string(std::max(1, instance_->vcpus - kCpusForNode)));
      wanted.set("memory", fmt::format("{}Mi", memory));
    }
    if (spec_.resources.gpus_per_node > 0)
      wanted.set("nvidia.com/gpu", std::to_string(spec_.resources.gpus_per_node));
    if (instance_ != nullptr) {
      const bool neuron = instance_->accelerator && instance_->accelerator->maker == "aws";
      if (neuron && !spec_.program.command.empty())  // the built-in trainer does not compute on them
        wanted.set("aws.amazon.com/neuron", std::to_string(instance_->accelerators));
      if (efa()) {
        wanted.set("vpc.amazonaws.com/efa", std::to_string(instance_->efa_interfaces));
        wanted.set("hugepages-2Mi", fmt::format("{}Mi", kHugePagesMib));
      }
    }
    return Yaml::map().set("requests", wanted).set("limits", wanted);
  }

  Yaml mounts(bool job) const {
    Yaml list = Yaml::list();
    list.add(Yaml::map().set("name", "shared").set("mountPath", options_.mount));
    list.add(Yaml::map().set("name", "shm").set("mountPath", "/dev/shm"));
    if (job) list.add(Yaml::map().set("name", "job").set("mountPath", "/etc/shardrun").set("readOnly", true));
    return list;
  }

  Yaml volumes(bool job) const {
    Yaml list = Yaml::list();
    list.add(Yaml::map()
                 .set("name", "shared")
                 .set("persistentVolumeClaim", Yaml::map().set("claimName", options_.claim)));
    list.add(Yaml::map().set("name", "shm").set("emptyDir", Yaml::map().set("medium", "Memory")));
    if (job)
      list.add(Yaml::map().set("name", "job").set("configMap", Yaml::map().set("name", spec_.name + "-job")));
    return list;
  }

  // Makes a pod that gets all of the machine.
  Yaml machine_pod(Yaml container) const {
    container.set("resources", resources());
    return pod_around(std::move(container));
  }

  Yaml pod_around(Yaml container) const {
    if (efa())  // registered memory is locked
      container.set("securityContext",
                    Yaml::map().set("capabilities", Yaml::map().set("add", Yaml::list({"IPC_LOCK"}))));
    container.set("volumeMounts", mounts(/*job=*/false));
    Yaml pod = Yaml::map();
    if (instance_ != nullptr)
      pod.set("nodeSelector", Yaml::map().set("node.kubernetes.io/instance-type", instance_->type));
    return pod.set("containers", Yaml::list().add(std::move(container)))
        .set("volumes", volumes(/*job=*/false));
  }

  static Yaml replicas(int count, const char* restart, Yaml pod) {
    Yaml spec = Yaml::map();
    spec.set("replicas", count);
    if (*restart != '\0') spec.set("restartPolicy", restart);
    return spec.set("template", Yaml::map().set("spec", std::move(pod)));
  }

  // Kubernetes puts variables where it reads $(NAME) in these strings, and one $ where it reads two.
  static std::string literal(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '$' ? "$$" : std::string(1, c);
    return out;
  }
  static std::vector<std::string> literals(std::vector<std::string> words) {
    for (std::string& word : words) word = literal(word);
    return words;
  }

  static Yaml variable(const std::string& name, const std::string& value) {
    return Yaml::map().set("name", name).set("value", literal(value));
  }

  Yaml mpi_job() const {
    std::vector<std::string> command = {"shardrun", "run", "/etc/shardrun/job.toml"};
    for (const std::string& one : plan_.overrides) command.insert(command.end(), {"--set", one});
    Yaml conductor = Yaml::map();
    conductor.set("name", "shardrun").set("image", image()).set("command", Yaml::list(literals(command)));
    conductor.set("workingDir", options_.mount);
    // Volumes of pods are open to all users of the pod, which has one.
    conductor.set("env",
                  Yaml::list().add(variable(base::kTrustedFolders, options_.mount + ":/etc/shardrun")));
    const Yaml little = Yaml::map().set("cpu", "1").set("memory", "2Gi");
    conductor.set("resources", Yaml::map().set("requests", little).set("limits", little));
    conductor.set("volumeMounts", mounts(/*job=*/true));
    Yaml launcher = Yaml::map();
    launcher.set("containers", Yaml::list().add(conductor)).set("volumes", volumes(/*job=*/true));
    Yaml worker = Yaml::map();
    worker.set("name", "shardrun").set("image", image());
    worker.set("command", Yaml::list({"/usr/sbin/sshd", "-De"}));  // mpirun starts the ranks through it

    Yaml job = Yaml::map();
    job.set("slotsPerWorker", plan_.ranks_per_node).set("mpiImplementation", "OpenMPI");
    job.set("launcherCreationPolicy", "WaitForWorkersReady").set("runPolicy", run_policy(/*restarts=*/0));
    const int workers = plan_.nodes + spec_.fault_tolerance.spares;
    job.set("mpiReplicaSpecs", Yaml::map()
                                   .set("Launcher", replicas(1, "Never", launcher))
                                   .set("Worker", replicas(workers, "", machine_pod(worker))));
    Yaml root = Yaml::map();
    root.set("apiVersion", "kubeflow.org/v2beta1").set("kind", "MPIJob").set("metadata", job_metadata());
    return root.set("spec", job);
  }

  // Returns what shardrun-rank would set for a command, as far as it is the same for all ranks, then [environment].
  Result<Yaml> environment() const {
    const auto text = [](int64_t value) { return std::to_string(value); };
    const plan::BatchPlan& batch = plan_.batch;
    Yaml list = Yaml::list();
    const bool fixed = !elastic();  // or a rank's share changes with the nodes, and the program computes it
    list.add(variable("SHARDRUN_MICRO_BATCH", text(batch.micro_batch)));
    if (fixed) list.add(variable("SHARDRUN_GRADIENT_ACCUMULATION", text(batch.gradient_accumulation)));
    list.add(variable("SHARDRUN_GLOBAL_BATCH", text(batch.global_batch)));
    if (fixed) {
      list.add(variable("SHARDRUN_RANK_BATCH", text(batch.micro_batch * batch.gradient_accumulation)));
      list.add(variable("SHARDRUN_LAST_MICRO_BATCH", text(batch.micro_batch)));
      list.add(variable("GRAD_ACCUM_USTEPS", text(batch.gradient_accumulation)));
    }
    list.add(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"));
    if (!spec_.environment.contains("OMP_NUM_THREADS"))
      list.add(variable("OMP_NUM_THREADS", text(plan_.cpus_per_rank)));
    if (efa() && !spec_.environment.contains("FI_PROVIDER")) list.add(variable("FI_PROVIDER", "efa"));
    for (const auto& [name, value] : spec_.environment) {
      if (value.kind == spec::EnvironmentValue::Kind::kFromFile)
        return refuse(
            spec_.origin("environment." + name), "a pod of Kubeflow's does not read the file of a variable",
            fmt::format("write {} = {{ from_env = \"{}\" }} and put it into the secret {}-environment", name,
                        name, spec_.name));
      if (value.kind == spec::EnvironmentValue::Kind::kLiteral) {
        list.add(variable(name, value.text));
      } else {
        const Yaml key = Yaml::map().set("name", spec_.name + "-environment").set("key", value.text);
        list.add(Yaml::map().set("name", name).set("valueFrom", Yaml::map().set("secretKeyRef", key)));
      }
    }
    return list;
  }

  Result<Yaml> pytorch_job() const {
    ASSIGN_OR_RETURN(auto variables, environment());
    Yaml container = Yaml::map();
    container.set("name", "pytorch").set("image", image());
    // Nodes, ranks and the rendezvous address come from the operator's PET_ variables.
    container.set("command", Yaml::list({"torchrun", "--no-python"}));
    container.set("args", Yaml::list(literals(spec_.program.command))).set("env", variables);
    container.set("workingDir", options_.mount);
    const Yaml pod = machine_pod(container);
    const int restarts = spec_.fault_tolerance.max_restarts;
    const char* restart = restarts > 0 ? "OnFailure" : "Never";
    Yaml kinds = Yaml::map();
    if (!elastic()) kinds.set("Master", replicas(1, restart, pod));
    const int workers = elastic() ? plan_.nodes : plan_.nodes - 1;
    if (workers > 0) kinds.set("Worker", replicas(workers, restart, pod));
    Yaml job = Yaml::map();
    if (elastic())  // they meet in the first worker, by torchrun's own server
      job.set("elasticPolicy", Yaml::map()
                                   .set("rdzvBackend", "c10d")
                                   .set("minReplicas", spec_.fault_tolerance.min_nodes)
                                   .set("maxReplicas", plan_.nodes)
                                   .set("maxRestarts", restarts));
    job.set("nprocPerNode", std::to_string(plan_.ranks_per_node)).set("runPolicy", run_policy(restarts));
    job.set("pytorchReplicaSpecs", kinds);
    Yaml root = Yaml::map();
    root.set("apiVersion", "kubeflow.org/v1").set("kind", "PyTorchJob").set("metadata", job_metadata());
    return root.set("spec", job);
  }

  // The runtime has the pods; what it does not know of them are patches of the one that the API allows.
  Result<Yaml> train_job() const {
    ASSIGN_OR_RETURN(auto variables, environment());
    Yaml trainer = Yaml::map();
    trainer.set("image", image());
    // The API has no working directory.
    trainer.set("command", Yaml::list({"env", "--chdir=" + options_.mount, "torchrun", "--no-python"}));
    trainer.set("args", Yaml::list(literals(spec_.program.command))).set("numNodes", plan_.nodes);
    trainer.set("numProcPerNode", plan_.ranks_per_node).set("env", variables);
    trainer.set("resourcesPerNode", resources());
    const auto within = [](const char* key, Yaml value) { return Yaml::map().set(key, std::move(value)); };
    Yaml node = Yaml::map().set("name", "node");
    node.set("template",
             within("spec", within("template", within("spec", pod_around(within("name", "node"))))));
    const Yaml jobs = within("spec", within("replicatedJobs", Yaml::list().add(node)));
    Yaml patch = Yaml::map().set("manager", "shardrun.render");
    patch.set("trainingRuntimeSpec", within("template", jobs));
    Yaml job = Yaml::map();
    if (spec_.resources.time_limit)
      job.set("activeDeadlineSeconds", static_cast<int64_t>(spec_.resources.time_limit->count()));
    job.set("runtimeRef", Yaml::map().set("name", options_.runtime));
    job.set("trainer", trainer).set("runtimePatches", Yaml::list().add(patch));
    Yaml root = Yaml::map();
    root.set("apiVersion", "trainer.kubeflow.org/v1alpha1").set("kind", "TrainJob");
    return root.set("metadata", job_metadata()).set("spec", job);
  }

  const spec::JobSpec& spec_;
  const std::string& job_text_;
  const record::LaunchPlan& plan_;
  const Instance* instance_;
  const KubernetesOptions& options_;
};

}  // namespace

Result<std::string> render_kubernetes(const spec::JobSpec& spec, const std::string& job_text,
                                      const record::LaunchPlan& plan, const Instance* instance,
                                      const KubernetesOptions& options) {
  return Manifest(spec, job_text, plan, instance, options).text();
}

}  // namespace shardrun::launcher
