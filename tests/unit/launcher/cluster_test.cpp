// Each broken cluster is refused with exactly the line of broken_clusters/expected.txt; each template becomes
// exactly the file of rendered/. That AWS's own package takes them is shown by tests/peers/cluster_schemas.sh.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/rules.h"
#include "launcher/cluster/yaml.h"
#include "runtime/base/io.h"
#include "tests/support/text.h"

using namespace shardrun;
using launcher::Yaml;
using tests::has;

namespace {

const std::string kHere = SOURCE_DIR "/tests/unit/launcher/";
const std::string kHead =
    "name = \"cluster\"\nregion = \"us-east-1\"\nos = \"ubuntu2204\"\n[head_node]\ninstance = \"m5.large\"\n"
    "subnet = \"subnet-0123456789abcdef0\"\n";

base::Result<launcher::ClusterConfig> checked(const std::string& text, const std::string& name) {
  auto config = launcher::parse_cluster(text, name);
  if (!config) return config;
  RETURN_IF_ERROR(launcher::check_cluster(*config, launcher::built_in_catalogue()));
  return config;
}

std::string rendered(const std::string& queue) {
  const auto config = checked(
      kHead + "[[queue]]\nname = \"q\"\nsubnets = [\"subnet-0123456789abcdef1\"]\n" + queue, "c.toml");
  REQUIRE_MESSAGE(config.has_value(), config.error().to_string());
  return launcher::render_pcluster(*config, launcher::built_in_catalogue(), "c.toml");
}

spec::JobSpec job_in(const std::string& partition) {
  const auto spec = spec::parse_job_spec(
      "name = \"x\"\n[resources]\nnodes = 2\n" + partition + "[program]\ncommand = [\"env\"]\n", "job.toml");
  REQUIRE(spec.has_value());
  return *spec;
}

}  // namespace

TEST_CASE("clusters: each broken one is refused with its file, line, column and a mend") {
  const std::string folder = kHere + "broken_clusters/";
  std::map<std::string, std::string> expected;
  std::ifstream lines(folder + "expected.txt");
  for (std::string line; std::getline(lines, line);) expected[line.substr(0, line.find(':'))] = line;
  CHECK(expected.size() >= 60);
  size_t seen = 0;

  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    const auto config = checked(base::read_file(entry.path().string()).value(), name);
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().to_string() == expected[name]);
    CHECK(has(config.error().to_string(), "; "));
    ++seen;
  }

  CHECK(seen == expected.size());
}

TEST_CASE("clusters: a password that stands where its secret's name belongs is not repeated") {
  const auto text = base::read_file(kHere + "broken_clusters/accounting_password_written_out.toml").value();

  const auto config = checked(text, "c.toml");

  REQUIRE_FALSE(config.has_value());
  CHECK(has(text, "hunter2"));
  CHECK_FALSE(has(config.error().to_chain_string(), "hunter2"));
}

TEST_CASE("clusters: every template becomes the configuration that was reviewed") {
  for (const std::string name : {"p4de", "p5", "trn1", "trn1-two-queues", "cpu"}) {
    CAPTURE(name);
    const std::string path = "cluster-configs/" + name + ".toml";
    const auto config = checked(base::read_file(SOURCE_DIR "/" + path).value(), path);
    REQUIRE_MESSAGE(config.has_value(), config.error().to_string());

    const std::string yaml = launcher::render_pcluster(*config, launcher::built_in_catalogue(), path);

    CHECK(yaml == base::read_file(kHere + "rendered/" + name + ".yaml").value());
  }
}

TEST_CASE(
    "clusters: login nodes, security groups, policies, disks, OpenZFS and a spot price stand where pcluster "
    "reads them") {
  const auto config = launcher::parse_cluster(R"(name = "many"
region = "us-east-1"
os = "ubuntu2204"
policies = ["arn:aws:iam::aws:policy/AmazonEC2ReadOnlyAccess"]
[head_node]
instance = "m5.large"
subnet = "subnet-0123456789abcdef0"
key = "k"
security_groups = ["sg-0123456789abcdef0"]
[login_nodes]
instance = "c7i.xlarge"
count = 2
[[storage]]
name = "home"
kind = "ebs"
mount = "/shared"
capacity_gib = 500
throughput = 500
volume = "gp3"
[[storage]]
name = "zfs"
kind = "fsx_openzfs"
mount = "/zfs"
id = "fsvol-0123456789abcdef0"
[[queue]]
name = "q"
capacity = "spot"
instance = "c7i.8xlarge"
max_count = 4
spot_price = 1.25
subnets = ["subnet-0123456789abcdef1"]
security_groups = ["sg-0123456789abcdef1"]
)",
                                              "many.toml");
  REQUIRE_MESSAGE(config.has_value(), config.error().to_string());
  const auto catalogue = launcher::built_in_catalogue();
  REQUIRE(launcher::check_cluster(*config, catalogue));

  const std::string text = launcher::render_pcluster(*config, catalogue, "many.toml");

  for (const char* part : {"LoginNodes:\n  Pools:\n    - Name: login\n      InstanceType: c7i.xlarge\n      "
                           "Count: 2\n      Networking:\n"
                           "        SubnetIds:\n          - subnet-0123456789abcdef0\n      Ssh:\n        "
                           "KeyName: k\n      Iam:\n"
                           "        AdditionalIamPolicies:\n          - Policy: "
                           "arn:aws:iam::aws:policy/AmazonEC2ReadOnlyAccess\n",
                           "    SubnetId: subnet-0123456789abcdef0\n    AdditionalSecurityGroups:\n      - "
                           "sg-0123456789abcdef0\n",
                           "SpotPrice: 1.25\n", "          - sg-0123456789abcdef1\n",
                           "    StorageType: Ebs\n    MountDir: /shared\n    EbsSettings:\n      VolumeType: "
                           "gp3\n      Size: 500\n"
                           "      Encrypted: true\n      Throughput: 500\n      DeletionPolicy: Delete\n",
                           "    StorageType: FsxOpenZfs\n    MountDir: /zfs\n    FsxOpenZfsSettings:\n"
                           "      VolumeId: fsvol-0123456789abcdef0\n"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, "is not in\n", text);
}

TEST_CASE("clusters: EFA comes by itself where the type has it, with a placement group of its own") {
  const std::string with = rendered("instance = \"p5.48xlarge\"\nmax_count = 2\n");
  CHECK(has(with, "Efa:\n            Enabled: true\n"));
  CHECK(has(with, "PlacementGroup:\n          Enabled: true\n"));

  const std::string without = rendered("instance = \"m5.large\"\nmax_count = 2\n");
  CHECK_FALSE(has(without, "Efa"));
  CHECK_FALSE(has(without, "PlacementGroup"));
}

TEST_CASE("clusters: nodes of a reservation are placed by it, those of a capacity block by AWS") {
  const std::string reserved =
      rendered("instance = \"p5.48xlarge\"\nmax_count = 2\nreservation = \"cr-0123456789abcdef0\"\n");
  CHECK(has(reserved, "PlacementGroup:\n          Enabled: false\n"));

  const std::string block = rendered(
      "instance = \"p5.48xlarge\"\nmin_count = 2\nmax_count = 2\ncapacity = \"capacity_block\"\n"
      "reservation = \"cr-0123456789abcdef0\"\n");
  CHECK(has(block, "CapacityType: CAPACITY_BLOCK\n"));
  CHECK_FALSE(has(block, "PlacementGroup"));
}

TEST_CASE("clusters: a job's machine is that of its queue, or of the first") {
  const auto catalogue = launcher::built_in_catalogue();
  const auto text = base::read_file(SOURCE_DIR "/cluster-configs/cpu.toml").value();
  const auto config = checked(text, "cpu.toml").value();

  CHECK(launcher::find_queue_instance(job_in(""), config, catalogue).value()->type == "hpc7a.96xlarge");
  CHECK(launcher::find_queue_instance(job_in("partition = \"prepare\"\n"), config, catalogue).value()->type ==
        "c7i.8xlarge");
  const auto none = launcher::find_queue_instance(job_in("partition = \"gpu\"\n"), config, catalogue);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().message() ==
        "job.toml:4:13: cluster \"cpu\" has no queue \"gpu\"; its queues are train, prepare");
}

TEST_CASE("yaml: a string that could be read as anything else is quoted") {
  for (const char* plain : {"us-east-1", "m5.8xlarge", "s3://bucket/a.sh", "/fsx", "ONDEMAND"})
    CHECK(Yaml::quoted(plain) == plain);
  CHECK(Yaml::quoted("yes") == "\"yes\"");
  CHECK(Yaml::quoted("Off") == "\"Off\"");
  CHECK(Yaml::quoted("NULL") == "\"NULL\"");
  CHECK(Yaml::quoted("") == "\"\"");
  CHECK(Yaml::quoted("10000") == "\"10000\"");
  CHECK(Yaml::quoted("1e5") == "\"1e5\"");
  CHECK(Yaml::quoted("--neuron") == "\"--neuron\"");
  CHECK(Yaml::quoted("a: b") == "\"a: b\"");
  CHECK(Yaml::quoted("a:") == "\"a:\"");
  CHECK(Yaml::quoted("# no") == "\"# no\"");
  CHECK(Yaml::quoted("a\"b\\c\nd\x01") == "\"a\\\"b\\\\c\\nd\\x01\"");
}

TEST_CASE("yaml: maps in lists and lists in maps are indented as readers expect") {
  Yaml inner = Yaml::list();
  inner.add(Yaml::map().set("a", 1).set("b", Yaml::list({"x", "z"}))).add("z");
  const Yaml root = Yaml::map().set("list", inner).set("none", Yaml::list()).set("empty", Yaml::map());

  CHECK(root.to_text() == "list:\n  - a: 1\n    b:\n      - x\n      - z\n  - z\nnone: []\nempty: {}\n");
}
