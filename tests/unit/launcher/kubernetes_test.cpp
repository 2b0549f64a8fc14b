// Manifests are compared with the ones that were reviewed (rendered/); that the CRDs and Kubernetes take them is shown by
// tests/peers/cluster_schemas.sh, that mpirun takes their command by tests/process/schedule/mpirun_test.
#include <doctest/doctest.h>

#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/plan/launch_plan.h"
#include "runtime/base/io.h"
#include "tests/support/text.h"

using namespace shardrun;
using tests::has;

namespace {

const std::string kCommand =
    "name = \"x\"\n[resources]\nnodes = 2\nranks_per_node = 2\ncpus_per_rank = 3\n[program]\ncommand = "
    "[\"env\"]\n";

base::Result<std::string> rendered(const std::string& text, const char* type,
                                   launcher::KubernetesKind kind = launcher::KubernetesKind::kAuto,
                                   const std::string& image = "example.com/shardrun:1",
                                   const std::string& queue = "") {
  const auto catalogue = launcher::built_in_catalogue();
  launcher::PlanContext context;
  context.overrides = {std::string("cluster.instance=") + type, "cluster.scheduler=mpirun"};
  auto spec = spec::parse_job_spec(text, "job.toml", context.overrides);
  REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
  if (const launcher::Instance* instance = catalogue.find(type)) {
    const auto own = launcher::instance_overrides(*spec, *instance);
    REQUIRE_MESSAGE(own.has_value(), own.error().to_string());
    context.overrides.insert(context.overrides.end(), own->begin(), own->end());
    spec = spec::parse_job_spec(text, "job.toml", context.overrides);
    REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
  }
  const auto plan = launcher::solve_launch_plan(*spec, context);
  REQUIRE_MESSAGE(plan.has_value(), plan.error().to_string());
  launcher::KubernetesOptions options;
  options.kind = kind;
  options.image = image;
  options.claim = "fsx";
  options.queue = queue;
  return launcher::render_kubernetes(*spec, text, *plan, catalogue.find(type), options);
}

}  // namespace

TEST_CASE("kubernetes: the trainer becomes the MPIJob that was reviewed") {
  const auto text = base::read_file(SOURCE_DIR "/jobs/tiny-llama.toml").value();

  const auto manifest = rendered(text, "p5.48xlarge");

  REQUIRE(manifest.has_value());
  CHECK(*manifest == base::read_file(SOURCE_DIR "/tests/unit/launcher/rendered/mpijob.yaml").value());
}

TEST_CASE("kubernetes: a command becomes the PyTorchJob that was reviewed") {
  const auto manifest =
      rendered(kCommand +
                   "[batch]\nglobal_batch = 32\nmicro_batch = 4\n[fault_tolerance]\nmax_restarts = 3\n"
                   "[environment]\nMODE = \"yes\"\nHF_TOKEN = { from_env = \"TOKEN\" }\n",
               "trn1.32xlarge");

  REQUIRE(manifest.has_value());
  CHECK(*manifest == base::read_file(SOURCE_DIR "/tests/unit/launcher/rendered/pytorchjob.yaml").value());
}

TEST_CASE("kubernetes: a command becomes the TrainJob that was reviewed, in its queue") {
  const auto manifest = rendered(
      kCommand +
          "[batch]\nglobal_batch = 32\nmicro_batch = 4\n[environment]\nHF_TOKEN = { from_env = \"TOKEN\" }\n",
      "p5.48xlarge", launcher::KubernetesKind::kTrainJob, "example.com/torch:1", "team-a");

  REQUIRE_MESSAGE(manifest.has_value(), manifest.error().to_string());
  CHECK(*manifest == base::read_file(SOURCE_DIR "/tests/unit/launcher/rendered/trainjob.yaml").value());
}

TEST_CASE("kubernetes: a job with fewer nodes at least is elastic without etcd, and no TrainJob") {
  const std::string elastic = kCommand + "[fault_tolerance]\nmax_restarts = 3\nmin_nodes = 1\n";

  const std::string manifest = rendered(elastic, "c7i.8xlarge").value();

  CHECK(has(manifest,
            "  elasticPolicy:\n    rdzvBackend: c10d\n    minReplicas: 1\n    maxReplicas: 2\n"
            "    maxRestarts: 3\n"));
  CHECK(has(manifest, "  pytorchReplicaSpecs:\n    Worker:\n      replicas: 2\n"));
  CHECK_FALSE(has(manifest, "Master:"));
  CHECK(has(manifest, "SHARDRUN_GLOBAL_BATCH"));
  CHECK_FALSE(has(manifest, "SHARDRUN_GRADIENT_ACCUMULATION"));  // which fewer nodes would make untrue
  const auto refusal = [](const std::string& text) {
    return rendered(text, "c7i.8xlarge", launcher::KubernetesKind::kTrainJob).error().to_string();
  };
  CHECK(
      has(refusal(elastic), "job.toml:10:13: a TrainJob keeps its number of nodes; write --kind pytorchjob"));
  CHECK(has(refusal(kCommand + "[fault_tolerance]\nmax_restarts = 3\n"),
            "job.toml:9:16: a TrainJob is restarted as its runtime says"));
}

TEST_CASE("kubernetes: a queue is on the job and not on its ConfigMap") {
  const auto text = base::read_file(SOURCE_DIR "/jobs/tiny-llama.toml").value();

  const std::string manifest =
      rendered(text, "p5.48xlarge", launcher::KubernetesKind::kAuto, "i:1", "team-a").value();

  const std::string label = "  labels:\n    kueue.x-k8s.io/queue-name: team-a\n";
  CHECK_GT(manifest.find(label), manifest.find("kind: MPIJob"));
  CHECK(has(manifest, label));
}

TEST_CASE(
    "kubernetes: pods take the image of [container] where a registry has it, and refuse what pods cannot "
    "have") {
  constexpr auto kAuto = launcher::KubernetesKind::kAuto;
  const auto with = [](const std::string& container) { return kCommand + "[container]\n" + container; };

  CHECK(has(*rendered(with("image = \"example.com/torch:2\"\n"), "c7i.8xlarge", kAuto, ""),
            "image: example.com/torch:2"));
  CHECK(
      has(*rendered(with("image = \"/i/torch.sif\"\n"), "c7i.8xlarge", kAuto, "other:1"), "image: other:1"));
  CHECK(has(rendered(with("image = \"/i/torch.sif\"\n"), "c7i.8xlarge", kAuto, "").error().to_string(),
            "job.toml:9:9: no registry has the image of the pods; write --image"));
  CHECK(has(rendered(with("image = \"torch:2\"\n"), "c7i.8xlarge", launcher::KubernetesKind::kMpiJob)
                .error()
                .to_string(),
            "job.toml:8:1: the workers of an MPIJob are in their image already"));
  CHECK(has(rendered(with("image = \"torch:2\"\nmounts = [\"/data\"]\n"), "c7i.8xlarge").error().to_string(),
            "job.toml:10:11: a pod sees no folder of its node"));
}

TEST_CASE("kubernetes: one node needs no EFA, and a machine that nobody knows gets the CPUs of its ranks") {
  const std::string one =
      "name = \"x\"\n[resources]\nranks_per_node = 2\ncpus_per_rank = 3\n[program]\ncommand = [\"env\"]\n";

  CHECK_FALSE(has(rendered(one, "p5.48xlarge").value(), "vpc.amazonaws.com/efa"));
  CHECK(has(rendered(one, "p5.48xlarge").value(), "nvidia.com/gpu: \"8\""));
  const std::string unknown = rendered(one, "m5.large").value();
  CHECK(has(unknown, "cpu: \"6\""));
  CHECK_FALSE(has(unknown, "nodeSelector"));
}

TEST_CASE("kubernetes: pods ask for the accelerators that the job uses") {
  const std::string trainer =
      "name = \"x\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n[data]\nfiles = "
      "[\"/t\"]\n"
      "[resources]\nranks_per_node = 2\ncpus_per_rank = 1\n";

  CHECK(has(rendered(trainer + "gpus_per_node = 2\n", "p5.48xlarge").value(), "nvidia.com/gpu: \"2\""));
  CHECK_FALSE(has(rendered(trainer + "device = \"cpu\"\n", "p5.48xlarge").value(), "nvidia.com/gpu"));
  CHECK(has(rendered(trainer + "device = \"gpu\"\ngpus_per_node = 2\n", "elsewhere").value(),
            "nvidia.com/gpu: \"2\""));
  CHECK_FALSE(
      has(rendered(trainer + "device = \"cpu\"\n", "trn1.32xlarge").value(), "aws.amazon.com/neuron"));
  CHECK(has(rendered(kCommand, "trn1.32xlarge").value(), "aws.amazon.com/neuron: \"16\""));
}

TEST_CASE("kubernetes: what a manifest cannot say is refused with the mend") {
  const auto refusal = [](const std::string& text, launcher::KubernetesKind kind) {
    const auto manifest = rendered(text, "p5.48xlarge", kind);
    REQUIRE_FALSE(manifest.has_value());
    return manifest.error().message();
  };
  using enum launcher::KubernetesKind;

  CHECK(refusal("name = \"My_job\"\n[program]\ncommand = [\"env\"]\n", kAuto) ==
        "job.toml:1:8: Kubernetes takes no name \"My_job\"; use at most 52 small letters, digits and -, a "
        "letter first");
  CHECK(refusal("name = \"7b-run\"\n[program]\ncommand = [\"env\"]\n", kAuto).find("a letter first") !=
        std::string::npos);
  const std::string setup = "name = \"x\"\n[program]\nsetup = [\"module load cuda\"]\ncommand = [\"env\"]\n";
  for (const auto kind : {kPyTorchJob, kTrainJob})
    CHECK(
        refusal(setup, kind) ==
        "job.toml:3:9: the pods of torchrun run no lines before their ranks; put what they do into the image "
        "and write --set program.setup=[], or write --kind mpijob");
  CHECK(refusal("name = \"x\"\n[program]\ncommand = [\"env\"]\n[environment]\nKEY = { from_env = \"KEY\" }\n",
                kMpiJob)
            .find("the workers of an MPIJob have no variables to take it from; put it into a file of the "
                  "claim") != std::string::npos);
  CHECK(
      refusal(base::read_file(SOURCE_DIR "/jobs/tiny-llama.toml").value(), kPyTorchJob)
          .find("the built-in trainer starts through PMIx, which a PyTorchJob lacks; write --kind mpijob") !=
      std::string::npos);
  CHECK(refusal(kCommand + "[environment]\nKEY = { from_file = \"/k\" }\n", kAuto) ==
        "job.toml:9:7: a pod of Kubeflow's does not read the file of a variable; write KEY = { from_env = "
        "\"KEY\" } "
        "and put it into the secret x-environment");
}

TEST_CASE(
    "kubernetes: a dollar reaches the program as it was written, and an image of a registry has no scheme") {
  const std::string text =
      "name = \"x\"\n[program]\ncommand = [\"bash\", \"-c\", \"echo $$ $(A)\"]\n[container]\nimage = "
      "\"docker://nvcr.io/x:1\"\nruntime = \"pyxis\"\n[environment]\nPRICE = \"$5\"\n";
  const auto manifest = rendered(text, "p5.48xlarge", launcher::KubernetesKind::kPyTorchJob, "").value();

  CHECK(has(manifest, "echo $$$$ $$(A)"));
  CHECK(has(manifest, "$$5"));
  CHECK(has(manifest, "nvcr.io/x:1"));
  CHECK_FALSE(has(manifest, "docker://"));
}
