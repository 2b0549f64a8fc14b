#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>

#include <doctest/doctest.h>

#include "plugins/spank/node_side.h"
#include "plugins/spank/option.h"
#include "plugins/spank/submit_side.h"
#include "runtime/base/io.h"
#include "runtime/contract/master_port.h"
#include "tests/support/folder.h"

namespace {

using namespace shardrun;
using Variables = std::map<std::string, std::string>;

contract::EnvironmentLookup lookup_in(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

std::optional<std::string> find(const std::vector<std::string>& arguments) {
  return spank::find_option(arguments);
}

constexpr const char* kJob = R"(name = "job"
[resources]
nodes = 2
ranks_per_node = 2
cpus_per_rank = 3
[program]
command = ["env"]
[batch]
global_batch = 16
micro_batch = 2
)";

// Returns those of global rank 2 or 3, on the second node of the step, under the first of the two shapes
// that Slurm writes.
Variables task_variables(int local_rank) {
  return {{"SLURM_PROCID", std::to_string(2 + local_rank)},
          {"SLURM_LOCALID", std::to_string(local_rank)},
          {"SLURM_NODEID", "1"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_NNODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
          {"SLURM_STEP_NODELIST", "n[03-04]"},
          {"SLURMD_NODENAME", "n04"}};
}

Variables first_task() {
  Variables variables = task_variables(0);
  variables["SLURM_PROCID"] = variables["SLURM_NODEID"] = "0";
  variables["SLURMD_NODENAME"] = "n03";
  return variables;
}

constexpr spank::Step kStep = {77, 3, 0, {}};

}  // namespace

TEST_CASE("option: it is found before the program, with its value behind = or in the next word") {
  CHECK_EQ(find({"srun", "--shardrun=a.toml", "./x"}), "a.toml");
  CHECK_EQ(find({"srun", "-N", "2", "-p", "main", "--shardrun", "a.toml", "./x"}), "a.toml");
  CHECK_EQ(find({"srun", "-N2", "--mem=1G", "--shardrun=a.toml", "./x"}), "a.toml");
  CHECK_EQ(find({"srun", "--shardrun=", "./x"}), "");
}

TEST_CASE("option: what stands behind the program's name or -- is the program's") {
  CHECK_EQ(find({"srun", "./x", "--shardrun=a.toml"}), std::nullopt);
  CHECK_EQ(find({"srun", "-N2", "./x", "--shardrun=a.toml"}), std::nullopt);
  CHECK_EQ(find({"srun", "--mem=1G", "./x", "--shardrun=a.toml"}), std::nullopt);
  CHECK_EQ(find({"srun", "--", "./x", "--shardrun=a.toml"}), std::nullopt);
  CHECK_EQ(find({"srun", "-l", "--", "./x", "--shardrun=a.toml"}), std::nullopt);
  CHECK_EQ(find({"srun"}), std::nullopt);
  CHECK_EQ(find({}), std::nullopt);
}

TEST_CASE("option: a command line is split where the kernel put zeros, and a path is made absolute") {
  using std::string_literals::operator""s;
  CHECK_EQ(spank::split_at_zeros("srun\0-N2\0\0x\0"s), std::vector<std::string>{"srun", "-N2", "", "x"});
  CHECK_EQ(spank::absolute_spec("a.toml", "/w"), "/w/a.toml");
  CHECK_EQ(spank::absolute_spec("/j/a.toml", "/w"), "/j/a.toml");
  CHECK_EQ(spank::absolute_spec("", "/w"), "");
}

TEST_CASE("submit side: srun is given what the spec says and its user did not") {
  const auto spec =
      spec::parse_job_spec(kJob, "job.toml",
                           std::vector<std::string>{"resources.time_limit=3661", "resources.partition=gpu",
                                                    "resources.exclusive=true", "resources.gpus_per_node=8"});
  REQUIRE(spec);

  CHECK_EQ(spank::srun_defaults(*spec, lookup_in({{"SLURM_PARTITION", "other"}, {"SLURM_MPI_TYPE", "none"}}),
                                "/w"),
           Variables{{"SLURM_NTASKS_PER_NODE", "2"},
                     {"SRUN_CPUS_PER_TASK", "3"},
                     {"SLURM_CPU_BIND", "none"},
                     {"SLURM_DISTRIBUTION", "block"},
                     {"SLURM_KILL_BAD_EXIT", "1"},
                     {"SLURM_JOB_NAME", "job"},
                     {"SLURM_JOB_NUM_NODES", "2"},
                     {"SLURM_TIMELIMIT", "61:01"},
                     {"SLURM_EXCLUSIVE", "exclusive"},
                     {"SLURM_GPUS_PER_NODE", "8"}});
}

TEST_CASE("submit side: of an allocation that is there, nothing is asked") {
  const auto spec =
      spec::parse_job_spec(kJob, "job.toml", std::vector<std::string>{"resources.partition=gpu"});

  const Variables defaults = spank::srun_defaults(*spec, lookup_in({{"SLURM_JOB_ID", "77"}}), "/w");

  CHECK_EQ(defaults.count("SLURM_PARTITION"), 0);
  CHECK_EQ(defaults.count("SLURM_JOB_NUM_NODES"), 0);
  CHECK_EQ(defaults.at("SLURM_NTASKS_PER_NODE"), "2");
}

TEST_CASE(
    "submit side: a job that srun cannot start, or whose batch does not divide, is refused at its place") {
  const tests::Folder folder;
  const std::string good = folder.file("good.toml", kJob);
  const std::string trainer = folder.file("trainer.toml",
                                          "name = \"t\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = "
                                          "\"llama-1m\"\n[data]\nfiles = [\"x\"]\n");
  const std::string odd =
      folder.file("odd.toml", std::string(kJob).replace(std::string(kJob).find("16"), 2, "17"));

  CHECK(spank::check_job(good));
  CHECK_EQ(spank::check_job(trainer).error().to_string().find(trainer + ":3:11: srun starts the program"), 0);
  CHECK_EQ(spank::check_job(odd).error().to_string().find(odd + ":9:16: global_batch 17 is not"), 0);
  CHECK_EQ(spank::check_job(folder / "none.toml").error().to_string().find(folder / "none.toml:1:1: "), 0);
}

TEST_CASE("submit side: an image goes to pyxis, with the names of what a rank is told") {
  const auto spec = spec::parse_job_spec(std::string(kJob) +
                                             "[container]\nimage = \"nvcr.io#nvidia/pytorch:24.01-py3\"\n"
                                             "mounts = [\"/data:/d:ro\"]\n[environment]\nMINE = \"1\"\n",
                                         "job.toml");
  REQUIRE(spec);

  const Variables defaults = spank::srun_defaults(*spec, lookup_in({}), "/w");

  const std::string pyxis = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_";
  CHECK_EQ(defaults.at(pyxis + "image"), "nvcr.io#nvidia/pytorch:24.01-py3");
  CHECK_EQ(defaults.at(pyxis + "mounts"), "/w:/w,/data:/d:ro");
  CHECK_EQ(defaults.at(pyxis + "workdir"), "/w");
  const std::string names = "," + defaults.at(pyxis + "env") + ",";
  for (const char* name : {"RANK", "MASTER_ADDR", "SHARDRUN_GLOBAL_BATCH", "MINE"})
    CHECK_NE(names.find(std::string(",") + name + ","), std::string::npos);
}

TEST_CASE("submit side: pyxis is told of a file and of the cache of compiled code as under shardrun run") {
  const tests::Folder folder;
  std::filesystem::create_directory(folder / "cache");
  const auto spec = spec::parse_job_spec(
      std::string(kJob) +
          "[container]\nimage = \"x.sqsh\"\n[precompile]\ncommand = [\"true\"]\ncache = \"cache\"\n",
      "job.toml");
  REQUIRE(spec);

  const Variables defaults = spank::srun_defaults(*spec, lookup_in({}), folder.path());

  const std::string pyxis = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_";
  CHECK_EQ(defaults.at(pyxis + "image"), folder / "x.sqsh");
  CHECK_EQ(defaults.at(pyxis + "mounts"),
           folder.path() + ":" + folder.path() + "," + (folder / "cache") + ":" + (folder / "cache"));
  const std::string names = "," + defaults.at(pyxis + "env") + ",";
  for (const char* name : {"TRITON_CACHE_DIR", "SHARDRUN_RANK_BATCH", "SHARDRUN_MASTER_PORT"})
    CHECK_NE(names.find(std::string(",") + name + ","), std::string::npos);
}

TEST_CASE("submit side: an image is refused without pyxis, and in a folder that no list of mounts can have") {
  const auto spec = spec::parse_job_spec(std::string(kJob) + "[container]\nimage = \"x\"\n", "job.toml");
  const auto with_pyxis = lookup_in({{spank::kPyxisStepVariable, "x"}});
  REQUIRE(spec);

  CHECK(spank::check_here(*spec, with_pyxis, "/w"));
  CHECK_EQ(spank::check_here(*spec, lookup_in({}), "/w")
               .error()
               .to_string()
               .find("job.toml:11:1: this srun has no pyxis"),
           0);
  CHECK_EQ(spank::check_here(*spec, with_pyxis, "/w,1")
               .error()
               .to_string()
               .find("job.toml:11:1: /w,1 cannot be mounted"),
           0);
}

TEST_CASE("submit side: a cache of compiled code that others can write is refused") {
  const tests::Folder folder;
  std::filesystem::create_directory(folder / "cache");
  const auto spec = spec::parse_job_spec(
      std::string(kJob) + "[precompile]\ncommand = [\"true\"]\ncache = \"cache\"\n", "job.toml");
  REQUIRE(spec);
  CHECK(spank::check_here(*spec, lookup_in({}), folder.path()));

  std::filesystem::permissions(folder / "cache", std::filesystem::perms::all);

  const auto refused = spank::check_here(*spec, lookup_in({}), folder.path());
  CHECK_EQ(refused.error().code(), base::Code::kRefused);
  CHECK_NE(refused.error().to_string().find("job.toml:13:9: compiled code is run"), std::string::npos);
}

TEST_CASE("submit side: an image that only another runtime could start is refused") {
  const tests::Folder folder;
  const std::string spec = folder.file(
      "job.toml", std::string(kJob) + "[container]\nimage = \"/x.sif\"\nruntime = \"apptainer\"\n");

  CHECK_EQ(
      spank::check_job(spec).error().to_string().find(spec + ":13:11: srun starts a program in an image"), 0);
}

TEST_CASE("submit side: a step of another size is refused with what to write") {
  const auto spec = spec::parse_job_spec(kJob, "job.toml");

  CHECK(spank::check_counts(*spec, 2, 4));
  CHECK_EQ(
      spank::check_counts(*spec, 4, 8).error().to_string(),
      "job.toml:3:9: the job has 2 nodes × 2 ranks, and this step has 8 tasks on 4 nodes; write srun -N2 "
      "--ntasks-per-node=2 in an allocation that has them, or change [resources]");
  CHECK_FALSE(spank::check_counts(*spec, 1, 4));
}

TEST_CASE("submit side: sections that only shardrun's own conductor obeys are named") {
  const auto spec =
      spec::parse_job_spec(std::string(kJob) + "[fault_tolerance]\nmax_restarts = 2\n", "job.toml");

  CHECK(spank::sections_without_effect(*spec::parse_job_spec(kJob, "job.toml")).empty());
  CHECK_EQ(spank::sections_without_effect(*spec),
           std::vector<std::string>{
               "job.toml:11:1: [fault_tolerance] has no effect: nobody supervises the tasks of a "
               "plain srun; `shardrun submit` does it"});
}

TEST_CASE("submit side: keys that a plain srun cannot obey are named, too") {
  const auto spec =
      spec::parse_job_spec(std::string(kJob).replace(std::string(kJob).find("[batch]"), 7,
                                                     "setup = [\"module load cuda\"]\nsnapshot = "
                                                     "\"git\"\n[batch]") +
                               "[slurm]\nmem = \"64G\"\n",
                           "job.toml", std::vector<std::string>{"resources.exclude=n7"});
  REQUIRE(spec);

  const std::vector<std::string> lines = spank::sections_without_effect(*spec);

  REQUIRE_EQ(lines.size(), 4);
  CHECK_NE(lines[0].find(": [resources] exclude has no effect: "), std::string::npos);
  CHECK_EQ(lines[1].find("job.toml:13:1: [slurm] has no effect: "), 0);
  CHECK_EQ(lines[2].find("job.toml:8:9: [program] setup has no effect: "), 0);
  CHECK_EQ(lines[3].find("job.toml:9:12: [program] snapshot has no effect: "), 0);
}

TEST_CASE("node side: the first host of a node list is that of node 0") {
  CHECK_EQ(spank::first_host("n1"), "n1");
  CHECK_EQ(spank::first_host("n1,n2"), "n1");
  CHECK_EQ(spank::first_host("n[03-04,7],m1"), "n03");
  CHECK_EQ(spank::first_host("n[7,9]"), "n7");
  CHECK_EQ(spank::first_host("rack[1-2]n[3-4]-ib,x"), "rack1n3-ib");
  CHECK_EQ(spank::first_host("n[3"), "n3");
  CHECK_EQ(spank::first_host(""), "");
}

TEST_CASE("node side: a task gets what a rank of shardrun run at its place gets") {
  const tests::Folder folder;
  const std::string spec = folder.file("job.toml", kJob);

  const auto task = spank::prepare_task(spec, kStep, lookup_in(task_variables(1)));

  REQUIRE(task);
  contract::RankEnv env;
  env.global_rank = 3;
  env.world_size = 4;
  env.local_rank = 1;
  env.local_world_size = 2;
  env.node_index = 1;
  env.node_count = 2;
  env.node_name = "n04";
  env.master_addr = "n03";
  env.master_port = static_cast<uint16_t>(std::stoi(task->variables.at("MASTER_PORT")));
  record::LaunchPlan plan;
  plan.id = "77.3";
  plan.cpus_per_rank = 3;
  plan.batch = {16, 2, 2, 4};
  Variables expected = contract::child_environment(env, plan, lookup_in({}));
  expected["SHARDRUN_ATTEMPT"] = "0";
  expected["SHARDRUN_MASTER_ADDR"] = "n03";
  expected["SHARDRUN_MASTER_PORT"] = expected["MASTER_PORT"];
  CHECK_EQ(task->variables, expected);
}

TEST_CASE(
    "node side: all tasks of a step meet at one port outside the ephemeral range, another step at another") {
  const tests::Folder folder;
  const std::string spec = folder.file("job.toml", kJob);
  const auto port_of = [&](const spank::Step& step, const Variables& variables) {
    return std::stoi(spank::prepare_task(spec, step, lookup_in(variables))->variables.at("MASTER_PORT"));
  };

  const int port = port_of(kStep, task_variables(0));

  const contract::PortRange ephemeral = contract::ephemeral_ports();
  CHECK((port < ephemeral.low || port > ephemeral.high));
  CHECK_EQ(port_of(kStep, task_variables(1)), port);
  CHECK_EQ(port_of(kStep, first_task()), port);
  CHECK_NE(port_of({77, 4, 0, {}}, task_variables(0)), port);
  CHECK_NE(port_of({78, 3, 0, {}}, task_variables(0)), port);
  CHECK_NE(port_of({77, 3, 1, {}}, task_variables(0)), port);
}

TEST_CASE("node side: the rank that would listen says so when somebody holds its port") {
  const tests::Folder folder;
  const std::string spec = folder.file("job.toml", kJob);
  const auto other = spank::prepare_task(spec, kStep, lookup_in(task_variables(0)));
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(other->variables.at("MASTER_PORT"))));
  const bool bound = ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  REQUIRE((bound || errno == EADDRINUSE));  // another test run beside this one holds the same

  const auto first = spank::prepare_task(spec, kStep, lookup_in(first_task()));

  CHECK_EQ(first.error().code(), base::Code::kIo);
  CHECK_NE(first.error().to_string().find("of n03, at which the ranks were to meet, is in use"),
           std::string::npos);
  CHECK(spank::prepare_task(
      folder.file("own.toml", std::string(kJob) + "[environment]\nMASTER_PORT = \"29500\"\n"), kStep,
      lookup_in(first_task())));
}

TEST_CASE(
    "node side: secrets come from the task's environment and files, and a missing one is named without a "
    "value") {
  const tests::Folder folder;
  const std::string spec = folder.file(
      "job.toml", std::string(kJob) +
                      "[environment]\nA_TOKEN = { from_env = \"MINE\" }\nB_TOKEN = { from_file = \"" +
                      folder.file("secret", "s3cret\n") + "\" }\n");
  Variables variables = task_variables(0);
  CHECK_EQ(spank::prepare_task(spec, kStep, lookup_in(variables)).error().code(), base::Code::kNotFound);

  variables["MINE"] = "m1ne";
  const auto task = spank::prepare_task(spec, kStep, lookup_in(variables));

  REQUIRE(task);
  CHECK_EQ(task->variables.at("A_TOKEN"), "m1ne");
  CHECK_EQ(task->variables.at("B_TOKEN"), "s3cret");
}

TEST_CASE(
    "node side: tasks that are spread unevenly are refused, and whoever told srun how to bind is obeyed") {
  const tests::Folder folder;
  const std::string spec =
      folder.file("job.toml", std::string(kJob).replace(std::string(kJob).find("rank = 3"), 8, "rank = 1"));
  Variables variables = task_variables(0);
  variables["SLURM_STEP_TASKS_PER_NODE"] = "3,1";
  CHECK_NE(spank::prepare_task(spec, kStep, lookup_in(variables))
               .error()
               .to_string()
               .find(":4:18: 1 tasks run on n04"),
           std::string::npos);

  variables = task_variables(0);
  const rank::Binding own = spank::prepare_task(spec, kStep, lookup_in(variables))->binding;
  const rank::Binding expected = rank::choose_binding(0, 2, 1);
  CHECK_EQ(own.cpus, expected.cpus);
  variables["SLURM_CPU_BIND_TYPE"] = "mask_cpu:";
  CHECK(spank::prepare_task(spec, kStep, lookup_in(variables))->binding.cpus.empty());
}
