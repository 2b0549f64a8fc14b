#include <doctest/doctest.h>

#include "launcher/cluster/catalogue.h"
#include "launcher/cluster/job_instance.h"

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

using Overrides = std::vector<std::string>;

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

TEST_CASE("job instance: ranks, CPUs and the network follow from the machine that a job names") {
  const Catalogue catalogue = launcher::built_in_catalogue();
  const spec::JobSpec spec = job("instance = \"p4de.24xlarge\"\n");

  const auto instance = launcher::find_job_instance(spec, catalogue);

  REQUIRE(instance.has_value());
  CHECK(launcher::instance_overrides(spec, **instance) ==
        Overrides{"resources.ranks_per_node=8", "resources.cpus_per_rank=6", "communication.provider=efa"});
}

TEST_CASE("job instance: what a job says itself is left alone") {
  const Catalogue catalogue = launcher::built_in_catalogue();
  const spec::JobSpec spec = job("instance = \"trn1.32xlarge\"\n", "nodes = 1\nranks_per_node = 16\n");

  const auto instance = launcher::find_job_instance(spec, catalogue);

  REQUIRE(instance.has_value());
  CHECK(launcher::instance_overrides(spec, **instance) == Overrides{"resources.cpus_per_rank=4"});
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
