#include <doctest/doctest.h>

#include "launcher/cluster/catalogue.h"
#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/load_job.h"
#include "tests/support/folder.h"

using namespace shardrun;
using launcher::Catalogue;
using launcher::Instance;

namespace {

spec::JobSpec job(const std::string& cluster, const std::string& resources = "nodes = 16\n") {
  const std::string text = "name = \"x\"\n[resources]\n" + resources + "[cluster]\nscheduler = \"slurm\"\n" +
                           cluster +
                           "[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-2-7b\"\n[data]\n"
                           "files = [\"/usr/share/common-licenses/GPL-3\"]\n[batch]\nglobal_batch = 128\n";
  auto spec = spec::parse_job_spec(text, "job.toml");
  REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
  return *spec;
}

spec::JobSpec command_job(const std::string& instance, const std::string& resources) {
  auto spec = spec::parse_job_spec("name = \"x\"\n[resources]\n" + resources + "[cluster]\ninstance = \"" +
                                       instance + "\"\n[program]\ncommand = [\"env\"]\n",
                                   "job.toml");
  REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
  return *spec;
}

using Overrides = std::vector<std::string>;

base::Result<Overrides> decide(const spec::JobSpec& spec) {
  const Catalogue catalogue = launcher::built_in_catalogue();
  const auto instance = launcher::find_job_instance(spec, catalogue);
  if (!instance) return instance.error();
  return launcher::instance_overrides(spec, **instance);
}

Overrides filled_in(const spec::JobSpec& spec) {
  const auto overrides = decide(spec);
  REQUIRE_MESSAGE(overrides.has_value(), overrides.error().to_string());
  return *overrides;
}

std::string refusal(const spec::JobSpec& spec) {
  const auto overrides = decide(spec);
  REQUIRE_FALSE(overrides.has_value());
  return overrides.error().message();
}

}  // namespace

TEST_CASE("catalogue: every machine that the issue names is there, with its figures") {
  const Catalogue catalogue = launcher::built_in_catalogue();

  const struct {
    const char* type;
    int accelerators, ranks, cores, efa;
    double network, bf16;
  } rows[] = {
      {"p4d.24xlarge", 8, 8, 48, 4, 400, 312},      {"p4de.24xlarge", 8, 8, 48, 4, 400, 312},
      {"p5.48xlarge", 8, 8, 96, 32, 3200, 989},     {"p5e.48xlarge", 8, 8, 96, 32, 3200, 989},
      {"p5en.48xlarge", 8, 8, 96, 16, 3200, 989},   {"p6-b200.48xlarge", 8, 8, 96, 8, 3200, 2250},
      {"trn1.32xlarge", 16, 32, 64, 8, 800, 190},   {"trn1n.32xlarge", 16, 32, 64, 16, 1600, 190},
      {"trn2.48xlarge", 16, 64, 96, 16, 3200, 667}, {"g5.48xlarge", 8, 8, 96, 1, 100, 70},
      {"g6.48xlarge", 8, 8, 96, 1, 100, 121},
  };
  for (const auto& row : rows) {
    CAPTURE(row.type);
    const Instance* found = catalogue.find(row.type);
    REQUIRE(found != nullptr);
    CHECK(found->accelerators == row.accelerators);
    CHECK(found->ranks() == row.ranks);
    CHECK(found->cores() == row.cores);
    CHECK(found->efa_interfaces == row.efa);
    CHECK(found->network_gbits_per_second == row.network);
    CHECK(found->accelerator->peak.bf16 == row.bf16);
  }
  CHECK(catalogue.find("hpc7a.96xlarge")->cores() == 192);
  CHECK(catalogue.find("hpc7a.96xlarge")->ranks() == 1);
  CHECK(catalogue.find("p4d.48xlarge") == nullptr);
}

TEST_CASE("catalogue: a machine whose accelerator is not described is refused at its line") {
  const auto catalogue = launcher::parse_catalogue(
      "[instance.\"x.large\"]\naccelerator = \"h900\"\naccelerators = 8\nvcpus = 8\nmemory_mib = 1\n"
      "network_gbits_per_second = 1\n",
      "i.toml");

  REQUIRE_FALSE(catalogue.has_value());
  CHECK(catalogue.error().message() ==
        "i.toml:2:15: no accelerator \"h900\" is described; write a section [accelerator.h900]");
}

TEST_CASE("catalogue: an unknown key of a machine is refused with the one that was meant") {
  const auto catalogue = launcher::parse_catalogue("[instance.\"x.large\"]\nvcpu = 8\n", "i.toml");

  REQUIRE_FALSE(catalogue.has_value());
  CHECK(catalogue.error().message() == "i.toml:2:8: [x.large] has no key \"vcpu\"; did you mean \"vcpus\"?");
}

TEST_CASE(
    "job instance: device, GPUs, plugin and network of a trainer follow from the machine that a job names") {
  CHECK(filled_in(job("instance = \"p4de.24xlarge\"\n")) ==
        Overrides{"resources.device=gpu", "resources.gpus_per_node=8", "resources.ranks_per_node=8",
                  "resources.cpus_per_rank=6", "communication.plugin=nccl", "communication.provider=efa"});
  CHECK(filled_in(job("instance = \"hpc7a.96xlarge\"\n")) ==
        Overrides{"resources.device=cpu", "resources.ranks_per_node=1", "resources.cpus_per_rank=192",
                  "communication.provider=efa"});
}

TEST_CASE("job instance: a command gets the GPUs of the machine, and no key of the trainer") {
  CHECK(filled_in(command_job("p5.48xlarge", "nodes = 2\n")) ==
        Overrides{"resources.gpus_per_node=8", "resources.ranks_per_node=8", "resources.cpus_per_rank=12"});
  CHECK(filled_in(command_job("trn1.32xlarge", "nodes = 2\n")) ==
        Overrides{"resources.gpus_per_node=0", "resources.ranks_per_node=32", "resources.cpus_per_rank=2"});
}

TEST_CASE("job instance: what a job says itself is left alone") {
  CHECK(filled_in(command_job("trn1.32xlarge", "nodes = 1\nranks_per_node = 16\ngpus_per_node = 0\n")) ==
        Overrides{"resources.cpus_per_rank=4"});
  CHECK(filled_in(job("instance = \"p5.48xlarge\"\n", "nodes = 1\ngpus_per_node = 4\n")) ==
        Overrides{"resources.device=gpu", "resources.ranks_per_node=4", "resources.cpus_per_rank=24",
                  "communication.plugin=nccl"});
  CHECK(filled_in(job("instance = \"p5.48xlarge\"\n",
                      "nodes = 1\nranks_per_node = 4\ncpus_per_rank = 2\ndevice = \"cpu\"\n"))
            .empty());
}

TEST_CASE("job instance: NCCL is for several ranks that have a GPU each") {
  const std::string alone = "nodes = 1\nranks_per_node = 1\n";
  const std::string shared = "nodes = 1\nranks_per_gpu = 2\n";

  CHECK(filled_in(job("instance = \"p5.48xlarge\"\n", alone)) ==
        Overrides{"resources.device=gpu", "resources.gpus_per_node=8", "resources.cpus_per_rank=96",
                  "communication.plugin=ofi"});
  CHECK(filled_in(job("instance = \"p5.48xlarge\"\n", shared)) ==
        Overrides{"resources.device=gpu", "resources.gpus_per_node=8", "resources.ranks_per_node=16",
                  "resources.cpus_per_rank=6", "communication.plugin=ofi"});
}

TEST_CASE("job instance: accelerators that a trainer would leave alone are refused, unless the job says so") {
  CHECK(refusal(job("instance = \"trn1.32xlarge\"\n")) ==
        "job.toml:6:12: the built-in trainer does not compute on the trainium-trn1 of trn1.32xlarge; write a "
        "[program] command that does, or set [resources] device = \"cpu\" to train on its CPUs");
  CHECK(refusal(job("instance = \"p5.48xlarge\"\n", "nodes = 2\ngpus_per_node = 0\n")) ==
        "job.toml:4:17: without GPUs the built-in trainer would train on the CPUs of p5.48xlarge; remove the "
        "key, or set device = \"cpu\", too");
  CHECK(filled_in(job("instance = \"trn1.32xlarge\"\n", "nodes = 1\ndevice = \"cpu\"\n")) ==
        Overrides{"resources.ranks_per_node=32", "resources.cpus_per_rank=2"});
}

TEST_CASE("job instance: GPUs that a machine lacks are refused") {
  const std::string on_gpu = "nodes = 1\nranks_per_node = 1\ngpus_per_node = 1\ndevice = \"gpu\"\n";

  CHECK(refusal(job("instance = \"g5.12xlarge\"\n", "nodes = 2\ngpus_per_node = 8\n")) ==
        "job.toml:4:17: gpus_per_node = 8, but g5.12xlarge has 4; correct it, or name another instance");
  CHECK(refusal(job("instance = \"c7i.48xlarge\"\n", on_gpu)) ==
        "job.toml:5:17: gpus_per_node = 1, but c7i.48xlarge has no NVIDIA GPU; correct it, or name another "
        "instance");
}

TEST_CASE("job instance: sections of GPUs wait for what the machine decides") {
  const auto text = [](const std::string& instance) {
    return "name = \"x\"\n[cluster]\ninstance = \"" + instance +
           "\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-2-7b\"\n[precision]\nfp8 = "
           "true\n[gpu]\ngraphs = false\n[data]\nfiles = [\"/usr/share/common-licenses/GPL-3\"]\n";
  };
  const tests::Folder folder;
  const std::string path = folder.file("job.toml", text("p5.48xlarge"));

  const auto on_gpu = launcher::load_spec(path, {});
  REQUIRE_MESSAGE(on_gpu.has_value(), on_gpu.error().to_string());
  CHECK(on_gpu->spec.resources.device == spec::DeviceKind::kGpu);
  CHECK(on_gpu->spec.resources.gpus_per_node == 8);
  CHECK(on_gpu->spec.origin("resources.device") == path + ":3:12");
  CHECK_FALSE(on_gpu->says("resources.device"));
  CHECK(on_gpu->says("precision.fp8"));
  CHECK(launcher::filled_in_text(*on_gpu) ==
        "p5.48xlarge fills in resources.device=gpu, resources.gpus_per_node=8, resources.ranks_per_node=8, "
        "resources.cpus_per_rank=12, communication.plugin=nccl");

  folder.file("job.toml", text("c7i.48xlarge"));
  const auto on_cpu = launcher::load_spec(path, {});
  REQUIRE_FALSE(on_cpu.has_value());
  CHECK(on_cpu.error().message() ==
        path + ":10:1: [gpu] has no effect on CPUs; set [resources] device = \"gpu\", or remove the section");
}

TEST_CASE("job instance: a machine that nobody knows is refused with the nearest") {
  const auto instance =
      launcher::find_job_instance(job("instance = \"p5.24xlarge\"\n"), launcher::built_in_catalogue());

  REQUIRE_FALSE(instance.has_value());
  CHECK(instance.error().message() ==
        "job.toml:6:12: cluster.instance = \"p5.24xlarge\" is not in the catalogue; did you mean "
        "\"p4d.24xlarge\"?");
}

TEST_CASE("catalogue: a GPU is known by its driver's name, unless it is a board of other peaks") {
  const Catalogue catalogue = launcher::built_in_catalogue();
  const auto name_of = [&](const char* device) {
    const launcher::Accelerator* const unit = catalogue.find_accelerator(device);
    return unit == nullptr ? std::string() : unit->name;
  };
  CHECK(name_of("NVIDIA H200") == "h200");
  CHECK(name_of("NVIDIA H100 80GB HBM3") == "h100");
  CHECK(name_of("NVIDIA A100-SXM4-80GB") == "a100-80gb");
  CHECK(name_of("NVIDIA A100-SXM4-40GB") == "a100-40gb");
  CHECK(name_of("NVIDIA L4") == "l4");
  CHECK(name_of("NVIDIA L40S") == "l40s");
  CHECK(name_of("NVIDIA H100 PCIe") == "");
  CHECK(name_of("NVIDIA H100 NVL") == "");
  CHECK(name_of("NVIDIA GH200 480GB") == "");
  CHECK(name_of("Tesla V100-SXM2-16GB") == "");
  CHECK(name_of("CPU") == "");
  CHECK(name_of("emulated GPU (CPU)") == "");
}
