#include "launcher/submit/node_systems.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "tests/support/folder.h"

using namespace shardrun::launcher;
using shardrun::tests::Folder;

namespace {

// A root folder with these files, which stand for those of a node.
void make_files(const Folder& folder, const std::map<std::string, std::string>& files) {
  for (const auto& [name, text] : files) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    folder.file(name, text);
  }
}

void make_device(const Folder& folder, int slot, const char* vendor, const char* device, const char* kind) {
  const std::string at = "sys/bus/pci/devices/0000:00:" + std::to_string(slot) + ".0/";
  make_files(folder, {{at + "vendor", vendor}, {at + "device", device}, {at + "class", kind}});
}

std::string words_of(const NodeFacts& facts, const std::string& system) {
  for (const SystemLine& line : judge_systems(facts))
    if (line.system == system) return (line.harm ? "! " : "") + line.words;
  return "no such line";
}

// A node on which all is well.
NodeFacts whole_node() {
  NodeFacts facts;
  facts.distribution = "Amazon Linux 2023";
  facts.family = PackageFamily::kFedora;
  facts.kernel = "6.1.0";
  facts.glibc = "2.34";
  facts.nvidia_gpus = 8;
  facts.efa_interfaces = 32;
  facts.nvidia_driver = facts.efa_driver = facts.gpu_library = true;
  facts.shared_memory_bytes = int64_t{8} << 30;
  facts.memory_bytes = int64_t{16} << 30;
  facts.container_programs = {"apptainer", "enroot"};
  facts.components = {{"libfabric", "1.22", ""},
                      {"aws-ofi-nccl", "1.13.2-aws", ""},
                      {"NCCL", "2.28.9", ""},
                      {"Slurm", "24.11.5", ""},
                      {"srun --mpi", "pmix pmix_v5", ""}};
  return facts;
}

}  // namespace

TEST_CASE("doctor: hardware is counted on the bus, and what drives it is looked for beside it") {
  const Folder folder;
  make_files(folder, {{"etc/os-release",
                       "NAME=\"Rocky Linux\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"
                       "PRETTY_NAME=\"Rocky Linux 9.5 (Blue Onyx)\"\n"},
                      {"proc/sys/kernel/osrelease", "5.14.0-503.el9.x86_64\n"},
                      {"proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"},
                      {"bin/enroot", ""}});
  std::filesystem::permissions(folder / "bin/enroot", std::filesystem::perms::owner_all);
  make_device(folder, 1, "0x10de\n", "0x2330\n", "0x030200\n");
  make_device(folder, 2, "0x10de\n", "0x2330\n", "0x030200\n");
  make_device(folder, 3, "0x10de\n", "0x22a3\n", "0x068000\n");  // NVSwitch
  make_device(folder, 4, "0x1d0f\n", "0xefa1\n", "0x020000\n");
  make_device(folder, 5, "0x1d0f\n", "0xec20\n", "0x020000\n");  // a plain network card of Amazon's
  make_device(folder, 6, "0x1d0f\n", "0x7164\n", "0x088000\n");

  NodeFacts facts = read_node_facts(folder / "lib", folder / "bin", folder.path());

  CHECK(facts.distribution == "Rocky Linux 9.5 (Blue Onyx)");
  CHECK(facts.family == PackageFamily::kFedora);
  CHECK(facts.kernel == "5.14.0-503.el9.x86_64");
  CHECK(facts.nvidia_gpus == 2);
  CHECK(facts.efa_interfaces == 1);
  CHECK(facts.neuron_devices == 1);
  CHECK_FALSE(facts.nvidia_driver);
  CHECK_FALSE(facts.efa_driver);
  CHECK_FALSE(facts.neuron_driver);
  CHECK_FALSE(facts.gpu_library);
  CHECK(facts.memory_bytes == 16384 * 1024);
  CHECK(facts.container_programs == std::vector<std::string>{"enroot"});

  make_files(folder, {{"proc/driver/nvidia/version", "x"},
                      {"sys/module/efa/version", "x"},
                      {"sys/module/neuron/version", "x"},
                      {"dev/infiniband/uverbs0", ""},
                      {"lib/libshardrun_gpu.so", ""}});
  facts = read_node_facts(folder / "lib", folder / "bin", folder.path());
  CHECK(facts.nvidia_driver);
  CHECK(facts.efa_driver);
  CHECK(facts.neuron_driver);
  CHECK(facts.gpu_library);
}

TEST_CASE("doctor: the distribution is known by its own name or by what it is like") {
  const auto family = [](const std::string& text) {
    const Folder folder;
    make_files(folder, {{"etc/os-release", text}});
    return read_node_facts("", "", folder.path()).family;
  };
  CHECK(family("ID=debian\n") == PackageFamily::kDebian);
  CHECK(family("ID=ubuntu\nID_LIKE=debian\n") == PackageFamily::kDebian);
  CHECK(family("ID=\"amzn\"\nID_LIKE=\"fedora\"\n") == PackageFamily::kFedora);
  CHECK(family("ID=\"rhel\"\n") == PackageFamily::kFedora);
  CHECK(family("ID=arch\n") == PackageFamily::kUnknown);
  CHECK(family("") == PackageFamily::kUnknown);
}

TEST_CASE("doctor: memory without measure is as much as a number holds") {
  const Folder folder;
  make_files(folder, {{"proc/meminfo", "MemTotal: 9223372036854775807 kB\n"}});
  CHECK(read_node_facts("", "", folder.path()).memory_bytes == INT64_MAX / 1024 * 1024);
}

TEST_CASE("doctor: a whole node has a line for each system and harms nothing") {
  const NodeFacts facts = whole_node();
  std::string all;
  for (const SystemLine& line : judge_systems(facts)) {
    CHECK_FALSE(line.harm);
    all += line.system + ": " + line.words + "\n";
  }
  CHECK(all ==
        "Linux: Amazon Linux 2023, kernel 6.1.0, glibc 2.34\n"
        "Slurm: 24.11.5, srun --mpi=pmix pmix_v5\n"
        "EFA: 32 interfaces, driver, libfabric 1.22\n"
        "NVIDIA GPUs: 8 on the bus, driver, NCCL 2.28.9\n"
        "Trainium: none\n"
        "images: apptainer, enroot\n"
        "shared memory: /dev/shm has 8192 MiB\n");
}

TEST_CASE("doctor: what is missing is told with the command of this distribution") {
  NodeFacts facts = whole_node();
  facts.container_programs.clear();
  facts.components.clear();
  facts.neuron_devices = 16;
  facts.shared_memory_bytes = int64_t{64} << 20;

  CHECK(words_of(facts, "Trainium") == "! 16 devices and no driver: dnf install aws-neuronx-dkms");
  CHECK(words_of(facts, "images") ==
        "no program runs them, and jobs with [container] are refused: dnf install apptainer");
  CHECK(words_of(facts, "NVIDIA GPUs") ==
        "! 8 on the bus, driver; no NCCL for the comm plugin nccl: dnf install libnccl; no aws-ofi-nccl, so "
        "NCCL does "
        "not use EFA: run aws-efa-installer");
  CHECK(words_of(facts, "shared memory").starts_with("! /dev/shm has 64 MiB, and ranks of a node"));
  CHECK(words_of(facts, "Slurm").starts_with("none: jobs run on this machine alone (dnf install slurm;"));

  facts.family = PackageFamily::kDebian;
  CHECK(words_of(facts, "Trainium") == "! 16 devices and no driver: apt-get install aws-neuronx-dkms");
  CHECK(words_of(facts, "images").ends_with(": apt-get install charliecloud"));
  facts.efa_driver = facts.nvidia_driver = false;
  CHECK(words_of(facts, "EFA") ==
        "! 32 interfaces and no driver: run efa_installer.sh -y of aws-efa-installer");
  CHECK(words_of(facts, "NVIDIA GPUs") == "! 8 on the bus and no driver: apt-get install cuda-drivers");
  facts.components = {{"Slurm", "", "its commands find no cluster: jobs run on this machine only"}};
  CHECK(words_of(facts, "Slurm") == "its commands find no cluster: jobs run on this machine only");
  facts.components = {{"Slurm", "26.05.5", ""}, {"srun --mpi", "", "this Slurm has no PMIx plugin"}};
  CHECK(words_of(facts, "Slurm") == "! 26.05.5: this Slurm has no PMIx plugin");
}

TEST_CASE("doctor: a trainer for GPUs that was not built is told where there are GPUs") {
  NodeFacts facts = whole_node();
  facts.gpu_library = false;
  CHECK(words_of(facts, "NVIDIA GPUs").find("own trainer is not built for GPUs") != std::string::npos);
  facts.nvidia_gpus = 0;
  CHECK(words_of(facts, "NVIDIA GPUs") == "none");
}
