#include "runtime/rank/container.h"

#include <doctest/doctest.h>

#include "runtime/base/io.h"
#include "runtime/contract/container_runtime.h"
#include "tests/support/folder.h"

namespace {

using namespace shardrun;
using spec::ContainerRuntime;
using Argv = std::vector<std::string>;

spec::JobSpec job(const std::string& container) {
  auto spec = spec::parse_job_spec(
      "name = \"x\"\n[program]\ncommand = [\"python3\", \"a b\"]\n[container]\n" + container, "job.toml");
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  return std::move(spec).value();
}

contract::EnvironmentLookup path_of(const std::string& folder) {
  return [folder](const std::string& name) -> std::optional<std::string> {
    return name == "PATH" ? std::optional("/no/such:" + folder) : std::nullopt;
  };
}

void add_program(const std::string& path) {
  std::ofstream(path) << "#!/bin/sh\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

}  // namespace

TEST_CASE(
    "container: apptainer gets argv and mounts, and each variable of the rank under the name that wins over "
    "the image") {
  spec::JobSpec spec =
      job("image = \"/i/x.sif\"\nmounts = [\"/data\", \"/a:/b:ro\"]\narguments = [\"--writable-tmpfs\"]\n");
  spec.resources.gpus_per_node = 8;
  const Argv folders = {"/w", "/w/runs/x/1", "/fsx/cache", "/spool/pmix.1.0"};

  const auto program = rank::contain(spec, {ContainerRuntime::kApptainer, "/opt/bin/apptainer"},
                                     {{"RANK", "3"}, {"A_TOKEN", "s3cret"}}, "/w", folders);

  REQUIRE(program);
  CHECK_EQ(program->argv,
           Argv{"/opt/bin/apptainer", "exec", "--nv", "--pwd", "/w", "--bind", "/w:/w", "--bind",
                "/fsx/cache:/fsx/cache", "--bind", "/spool/pmix.1.0:/spool/pmix.1.0", "--bind", "/data:/data",
                "--bind", "/a:/b:ro", "--writable-tmpfs", "/i/x.sif", "python3", "a b"});
  CHECK_EQ(program->environment, std::map<std::string, std::string>{{"APPTAINERENV_RANK", "3"},
                                                                    {"APPTAINERENV_A_TOKEN", "s3cret"},
                                                                    {"APPTAINER_NO_EVAL", "true"}});
}

TEST_CASE("container: without GPUs there is no --nv, and singularity has its own prefix") {
  const auto program =
      rank::contain(job("image = \"x.sif\"\n"), {ContainerRuntime::kSingularity, "/s/singularity"},
                    {{"RANK", "3"}}, "/w", Argv{"/w", "", "/tmp/run"});

  CHECK_EQ(program->argv, Argv{"/s/singularity", "exec", "--pwd", "/w", "--bind", "/w:/w", "--bind",
                               "/tmp/run:/tmp/run", "x.sif", "python3", "a b"});
  CHECK_EQ(program->environment.count("SINGULARITYENV_RANK"), 1);
  CHECK_EQ(program->environment.at("SINGULARITY_NO_EVAL"), "true");
}

TEST_CASE("container: charliecloud is told where to start, and mounts nothing twice that it mounts itself") {
  const auto spec = job("image = \"/i\"\nmounts = [\"/usr\", \"/fsx\"]\n");

  const auto program =
      rank::contain(spec, {ContainerRuntime::kCharliecloud, "/usr/bin/ch-run"}, {{"RANK", "3"}}, "/fsx/w",
                    Argv{"/fsx/w", "/tmp/pmix", "/scratch/x/run"});

  REQUIRE(program);
  CHECK_EQ(program->argv, Argv{"/usr/bin/ch-run", "--cd=/fsx/w", "--bind=/scratch/x/run:/scratch/x/run",
                               "--bind=/usr:/usr", "--bind=/fsx:/fsx", "/i", "--", "python3", "a b"});
  CHECK(program->environment.empty());
}

TEST_CASE("container: a folder that cannot be mounted is refused by name") {
  const auto apptainer =
      rank::contain(job("image = \"x\"\n"), {ContainerRuntime::kApptainer, "a"}, {}, "/w,1", Argv{"/w,1"});
  CHECK_NE(apptainer.error().to_string().find("/w,1 cannot be mounted"), std::string::npos);
  const auto read_only = rank::contain(job("image = \"x\"\nmounts = [\"/a:/a:ro\"]\n"),
                                       {ContainerRuntime::kCharliecloud, "c"}, {}, "/w", Argv{});
  CHECK_NE(read_only.error().to_string().find("charliecloud mounts /a for writing"), std::string::npos);
}

TEST_CASE(
    "container: auto takes the first runtime that PATH has, a name only that one, and none is refused at its "
    "place") {
  const tests::Folder folder;
  const auto none = contract::find_container_runtime(job("image = \"x\"\n"), path_of(folder.path()));
  CHECK_EQ(none.error().to_string(),
           "job.toml:4:1: there is no apptainer, singularity, ch-run on PATH to run the image with; install "
           "it, or remove "
           "[container]");
  add_program(folder / "ch-run");
  const auto only = contract::find_container_runtime(job("image = \"x\"\n"), path_of(folder.path()));
  REQUIRE(only);
  CHECK_EQ(only->kind, ContainerRuntime::kCharliecloud);
  CHECK_EQ(only->path, folder / "ch-run");
  add_program(folder / "apptainer");
  CHECK_EQ(contract::find_container_runtime(job("image = \"x\"\n"), path_of(folder.path()))->kind,
           ContainerRuntime::kApptainer);
  CHECK_EQ(contract::find_container_runtime(job("image = \"x\"\nruntime = \"singularity\"\n"),
                                            path_of(folder.path()))
               .error()
               .to_string()
               .find("job.toml:6:11: there is no singularity on PATH"),
           0);
  CHECK_EQ(
      contract::find_container_runtime(job("image = \"x\"\nruntime = \"pyxis\"\n"), path_of(folder.path()))
          ->kind,
      ContainerRuntime::kPyxis);
}

TEST_CASE(
    "container: pyxis, which takes a bare name for a registry's, gets the path of a file of the working "
    "directory") {
  const tests::Folder folder;
  REQUIRE(base::write_file_atomically(folder.path() + "/unpacked", "", 0600));
  record::LaunchPlan plan;
  plan.working_directory = folder.path();
  const auto image = [&](const std::string& name) {
    return contract::pyxis_options(job("image = \"" + name + "\"\nruntime = \"pyxis\"\n"), plan, {}).front();
  };

  CHECK_EQ(image("images/pytorch.sqsh"), "--container-image=" + folder.path() + "/images/pytorch.sqsh");
  CHECK_EQ(image("unpacked"), "--container-image=" + folder.path() + "/unpacked");
  CHECK_EQ(image("nvcr.io/nvidia/pytorch:24.01"), "--container-image=nvcr.io/nvidia/pytorch:24.01");
  CHECK_EQ(image("./x.sqsh"), "--container-image=./x.sqsh");
}

TEST_CASE(
    "container: srun's pyxis gets the image, each folder of ours once, the spec's mounts, and names alone") {
  record::LaunchPlan plan;
  plan.rank_program = "/fsx/shardrun/libexec/shardrun-rank";
  plan.run_directory = "/fsx/me/runs/j/7";
  plan.working_directory = "/fsx/me";
  plan.variables["SHARDRUN_COMPILE_CACHE"] = "/fsx/me";
  const spec::JobSpec spec = job("image = \"nvcr.io#x\"\nruntime = \"pyxis\"\nmounts = [\"/data:/d:ro\"]\n");

  const auto options = contract::pyxis_options(spec, plan, {{"SHARDRUN_ATTEMPT", "0"}, {"TOKEN", "s3cr3t"}});

  CHECK_EQ(options,
           std::vector<std::string>{"--container-image=nvcr.io#x",
                                    "--container-mounts=/fsx/me:/fsx/me,/fsx/me/runs/j/7:/fsx/me/runs/j/7,/"
                                    "fsx/shardrun:/fsx/shardrun,/data:/d:ro",
                                    "--container-workdir=/fsx/me", "--container-env=SHARDRUN_ATTEMPT,TOKEN"});
}
