#include "launcher/submit/rules.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/fewer_nodes.h"
#include "launcher/submit/command_lint.h"
#include "launcher/submit/data_files.h"
#include "launcher/submit/installed.h"
#include "launcher/submit/script.h"
#include "launcher/submit/tokenizer_lint.h"
#include "runtime/base/command.h"
#include "runtime/base/text.h"
#include "runtime/base/trust.h"
#include "runtime/base/visible.h"
#include "runtime/contract/container_runtime.h"
#include "runtime/plan/pipeline.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

std::string absolute(const std::string& path, const std::string& working_directory) {
  return path.front() == '/' ? path : working_directory + "/" + path;
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// What else helps with a script: the program that reads it.
std::string interpreter_for(const std::string& program) {
  if (program.ends_with(".py")) return ", or write \"python3\" before it";
  return program.ends_with(".sh") ? ", or write \"bash\" before it" : "";
}

// The kernel takes the carriage return at the end of a line that Windows wrote for a letter of the interpreter's name.
bool has_first_line_of_windows(const std::string& script) {
  char line[256] = {};
  std::ifstream(script, std::ios::binary).getline(line, sizeof line);
  const std::string_view first(line);
  return first.starts_with("#!") && first.ends_with('\r');
}

// `key` is the key of the argv, e.g. "program.command".
Result<void> check_command(const spec::JobSpec& spec, const std::string& key,
                           const std::vector<std::string>& command, const std::string& working_directory) {
  const std::string& program = command.front();
  const std::string origin = spec.origin(key + "[0]");
  if (program.find('/') == std::string::npos) {
    if (!find_on_path(program).empty() || !spec.program.setup.empty()) return {};  // setup may change PATH
    const std::string here = absolute(program, working_directory);
    if (program.find(' ') != std::string::npos)
      return Error(Code::kInvalid, fmt::format("{}: no program is called \"{}\"; write each of its words by "
                                               "itself, [\"program\", \"argument\"]",
                                               origin, spec::printable(program)));
    if (::access(here.c_str(), F_OK) == 0)
      return Error(Code::kInvalid, fmt::format("{}: {} is here, and not on PATH; write \"./{}\"{}", origin,
                                               program, program, interpreter_for(program)));
    return Error(Code::kInvalid,
                 fmt::format("{}: no program \"{}\" on PATH; install it, or write its path; if only "
                             "the compute nodes have it, write \"env\" before it",
                             origin, program));
  }
  const std::string full = absolute(program, working_directory);
  if (is_executable_file(full) && has_first_line_of_windows(full))
    return Error(Code::kInvalid,
                 fmt::format("{}: {} has the line ends of Windows, with which the interpreter of its first "
                             "line is not found; take them away: sed -i 's/\\r$//' {}",
                             origin, full, shell_quoted(program)));
  if (is_executable_file(full)) return {};
  struct stat status {};
  if (::stat(full.c_str(), &status) == 0 && S_ISREG(status.st_mode))
    return Error(Code::kInvalid, fmt::format("{}: {} may not be executed; chmod +x it{}", origin, full,
                                             interpreter_for(program)));
  return Error(
      Code::kInvalid,
      fmt::format("{}: {} is no executable file; correct the path, or chmod +x it; if only the compute "
                  "nodes have it, write \"env\" before it",
                  origin, full));
}

Result<void> check_secret_file(const spec::JobSpec& spec, const std::string& name, const std::string& path,
                               const std::string& working_directory) {
  const std::string full = absolute(path, working_directory);
  if (::access(full.c_str(), R_OK) == 0) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: environment.{} comes from {}: {}; name a file that the ranks can read",
                           spec.origin("environment." + name), name, full, std::strerror(errno)));
}

Result<void> check_weights(const spec::JobSpec& spec, const std::string& working_directory) {
  const std::string full = absolute(spec.model.init, working_directory);
  if (::access(full.c_str(), R_OK) == 0) return {};
  return Error(
      Code::kInvalid,
      fmt::format("{}: {}: {}; name a safetensors file, or a folder of them with their index, or write "
                  "init = \"random\"",
                  spec.origin("model.init"), full, std::strerror(errno)));
}

// Whoever trained for hours should not learn at the end that the folder was taken.
Result<void> check_export(const spec::JobSpec& spec, const std::string& working_directory) {
  const std::string full = absolute(spec.exported.directory, working_directory);
  std::error_code ignored;
  const bool is_free =
      !std::filesystem::exists(full, ignored) ||
      (std::filesystem::is_directory(full, ignored) && std::filesystem::is_empty(full, ignored));
  if (is_free && !spec.exported.push.empty() && find_on_path("hf").empty())
    return Error(Code::kInvalid,
                 fmt::format("{}: no program hf is on the PATH; install huggingface_hub, or remove the key",
                             spec.origin("export.push")));
  if (is_free) return {};
  return Error(Code::kInvalid, fmt::format("{}: {} is there already; name another folder, or move it away",
                                           spec.origin("export.directory"), full));
}

// An image must be a local file or folder: ranks that each fetched it from a registry would all do so at once. srun
// checks what pyxis gets.
Result<void> check_container(const spec::JobSpec& spec, const std::string& working_directory) {
  if (!spec.container.is_given() || spec.container.runtime == spec::ContainerRuntime::kPyxis) return {};
  const std::string full = absolute(spec.container.image, working_directory);
  if (::access(full.c_str(), R_OK) != 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {}: {}; name an image file or folder that all nodes see, such "
                             "as `apptainer pull` makes",
                             spec.origin("container.image"), full, std::strerror(errno)));
  }
  RETURN_IF_ERROR(contract::find_container_runtime(spec, contract::process_environment()));
  return {};
}

// Pyxis is a plugin of srun, and what srun starts is the rank's supervisor, which therefore is mounted in the image.
Result<void> check_pyxis(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  const std::string origin = spec.origin("container.runtime");
  if (plan.scheduler != "slurm")
    return Error(Code::kInvalid,
                 fmt::format("{}: pyxis is a plugin of Slurm's srun, and this run has none; use "
                             "`shardrun submit`, or write runtime = \"apptainer\"",
                             origin));
  const std::string folder = contract::installation_folder(plan);
  if (folder == "/" || folder == "/usr" || folder == "/usr/local")
    return Error(
        Code::kInvalid,
        fmt::format("{}: with pyxis the folder of shardrun is mounted in the image, and {} would hide the "
                    "image's own; unpack the archive elsewhere and use that",
                    origin, folder));
  for (const std::string* one : {&folder, &plan.run_directory, &plan.working_directory})
    if (!spec::can_be_mounted(*one))
      return Error(
          Code::kInvalid,
          fmt::format("{}: {} cannot be mounted in a container; use a path without : and ,", origin, *one));
  const auto help = base::run_command({"srun", "--help"});
  if (help && help->out.find("--container-image") != std::string::npos) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: the srun of this machine has no pyxis to run the image with; ask the "
                           "administrator for it, or write another runtime",
                           origin));
}

// Either the folder itself, or the nearest one above it that exists, must take new entries.
Result<void> check_checkpoint_folder(const spec::JobSpec& spec, const std::string& working_directory) {
  std::string folder = absolute(spec.checkpoint.directory, working_directory);
  struct stat status {};
  while (::stat(folder.c_str(), &status) != 0 && errno == ENOENT && folder.find_last_of('/') != 0) {
    folder.erase(folder.find_last_of('/'));
  }
  const std::string origin = spec.origin("checkpoint.directory");
  if (::stat(folder.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is no folder; name one for the checkpoints", origin, folder));
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return Error(Code::kInvalid, fmt::format("{}: no checkpoints can be written in {}: {}; name another folder",
                                           origin, folder, std::strerror(errno)));
}

// The plan carries them to the ranks as JSON.
Result<void> check_names_of_folders(const record::LaunchPlan& plan) {
  for (const auto& [what, path] :
       {std::pair("working directory", &plan.working_directory),
        std::pair("run directory", &plan.run_directory), std::pair("path of shardrun", &plan.rank_program)}) {
    for (std::string_view left = *path; !left.empty();) {
      const size_t length = base::character_length(left);
      if (length == 0)
        return Error(Code::kInvalid,
                     fmt::format("the {} {} is not UTF-8, as plan.json must be, so ranks would not find it; "
                                 "use another, or rename it",
                                 what, base::visible(*path)));
      left.remove_prefix(length);
    }
  }
  return {};
}

// Returns why a folder is most likely seen by this machine alone; "" where nothing speaks for it.
std::string why_private(const std::string& folder) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
    return "in this machine's memory";
  for (const char* own : {"/tmp", "/var/tmp", "/dev/shm", "/run"}) {
    if (folder == own || folder.starts_with(std::string(own) + "/")) return fmt::format("below {}", own);
  }
  return "";
}

// Ranks read their commands from the run directory.
Result<void> check_runs(const spec::JobSpec& spec, const std::string& working_directory) {
  auto ours = base::refuse_if_others_make(absolute(spec.logging.directory, working_directory));
  if (!ours)
    return std::move(ours).error().context(spec.origin("logging.directory") +
                                           ": ranks read their commands there");
  return {};
}

// Returns the errors of what only the ranks need, in the order of the spec.
std::vector<Error> check_for_ranks(const spec::JobSpec& spec, const std::string& working_directory) {
  std::vector<Error> errors;
  const auto keep = [&](Result<void> checked) {
    if (!checked) errors.push_back(std::move(checked).error());
  };
  if (spec.program.command.empty() && spec.model.init != "random")
    keep(check_weights(spec, working_directory));
  if (!spec.checkpoint.directory.empty()) keep(check_checkpoint_folder(spec, working_directory));
  if (!spec.exported.directory.empty()) keep(check_export(spec, working_directory));
  keep(check_container(spec, working_directory));
  for (const auto& [name, value] : spec.environment) {
    if (value.kind != spec::EnvironmentValue::Kind::kFromFile) continue;
    keep(check_secret_file(spec, name, value.text, working_directory));
  }
  return errors;
}

// Checks what ranks take from our own environment.
Result<void> check_variables(const spec::JobSpec& spec) {
  for (const auto& [name, value] : spec.environment) {
    if (value.kind == spec::EnvironmentValue::Kind::kFromVariable &&
        std::getenv(value.text.c_str()) == nullptr)
      return Error(Code::kInvalid,
                   fmt::format("{}: the variable {} is not set here; set it, or use from_file",
                               spec.origin("environment." + name), value.text));
  }
  return {};
}

// Checks what a rank on a GPU loads.
Result<void> check_gpu_library(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  if (spec.resources.device == spec::DeviceKind::kCpu) return {};
  const std::string library = plan.gpu_library();
  if (::access(library.c_str(), R_OK) == 0) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: this shardrun was built without CUDA ({} is not there); build it with the "
                           "preset cuda, or set device = \"cpu\"",
                           spec.origin("resources.device"), library));
}

// Stages of a pipeline wait for most of a step that has few micro-steps, and interleaved ones for a group of them that is not full.
void warn_of_bubble(const spec::JobSpec& spec, int64_t micro_steps, Warnings& warnings) {
  const int stages = spec.sharding.pipeline_parallel, chunks = spec.sharding.virtual_stages;
  const double share = 100.0 * plan::bubble_share(stages, chunks, micro_steps);
  if (chunks > 1 && micro_steps > stages && micro_steps % stages != 0)
    warnings.push_back(fmt::format(
        "{}: {} micro-steps are no multiple of {} stages, which wait for each other up to {:.0f} % of a "
        "step; change [batch] gradient_accumulation",
        spec.origin("sharding.virtual_stages"), micro_steps, stages, share));
  if (micro_steps >= stages) return;
  warnings.push_back(fmt::format(
      "{}: {} stages wait for each other {:.0f} % of a step of {}; raise [batch] "
      "gradient_accumulation, best to several times as many",
      spec.origin("sharding.pipeline_parallel"), stages, share, base::counted(micro_steps, "micro-step")));
}

// Refuses a min_nodes that cannot help.
Result<void> check_fewer_nodes(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  if (spec::fewest_nodes(spec.fault_tolerance, plan.nodes) == plan.nodes) return {};
  const auto fewer = plan_on_fewer(spec, plan, plan.nodes - 1, {});
  if (fewer) return {};
  return Error(
      Code::kInvalid,
      fmt::format(
          "{}: the loss of a node would end the job all the same: {}; lower min_nodes, or change [batch]",
          spec.origin("fault_tolerance.min_nodes"), fewer.error().message()));
}

}  // namespace

std::string find_on_path(const std::string& program) {
  const char* variable = std::getenv("PATH");
  std::string path = variable != nullptr ? variable : "/usr/bin:/bin";
  path += ':';
  for (size_t begin = 0, colon = 0; (colon = path.find(':', begin)) != std::string::npos; begin = colon + 1) {
    const std::string folder = path.substr(begin, colon - begin);
    std::string file = (folder.empty() ? "." : folder) + "/" + program;
    if (is_executable_file(file)) return file;
  }
  return "";
}

Result<Warnings> check_files(const spec::JobSpec& spec, const std::string& working_directory,
                             RanksRun where) {
  RETURN_IF_ERROR(check_data_files(spec, working_directory));
  // What is inside an image cannot be seen from here.
  const bool on_host = !spec.container.is_given();
  if (on_host && !spec.program.command.empty())
    RETURN_IF_ERROR(check_command(spec, "program.command", spec.program.command, working_directory));
  if (on_host && spec.precompile.enabled && !spec.precompile.command.empty())
    RETURN_IF_ERROR(check_command(spec, "precompile.command", spec.precompile.command, working_directory));
  Warnings warnings = lint_command(spec);
  for (std::string& warning : lint_tokenizer(spec, working_directory)) warnings.push_back(std::move(warning));
  for (std::string& warning : lint_data_files(spec, working_directory))
    warnings.push_back(std::move(warning));
  for (Error& error : check_for_ranks(spec, working_directory)) {
    if (where == RanksRun::kHere) return std::move(error);
    warnings.push_back(error.to_string());
  }
  return warnings;
}

Warnings warn_of_private_folders(const spec::JobSpec& spec, const std::string& working_directory,
                                 const std::string& runs_directory) {
  Warnings warnings;
  const auto look = [&](const std::string& folder, const std::string& place, const char* what) {
    const std::string why = why_private(folder);
    if (why.empty()) return;
    warnings.push_back(
        fmt::format("{}{} {} {}, which nodes do not share as a rule; submit from a folder that they "
                    "see, such as one in your home",
                    place, what, folder, why));
  };
  look(working_directory, "", "the job works in");
  if (!runs_directory.starts_with(working_directory + "/"))
    look(runs_directory, spec.origin("logging.directory") + ": ", "the run directory is below");
  return warnings;
}

Result<Warnings> check_launch(const spec::JobSpec& spec, const record::LaunchPlan& plan, bool dry_run) {
  RETURN_IF_ERROR(check_names_of_folders(plan));
  auto warnings = check_files(spec, plan.working_directory,
                              plan.scheduler != "local" ? RanksRun::kElsewhere : RanksRun::kHere);
  if (!warnings) return warnings;
  RETURN_IF_ERROR(check_runs(spec, plan.working_directory));
  if (spec.container.runtime == spec::ContainerRuntime::kPyxis) RETURN_IF_ERROR(check_pyxis(spec, plan));
  // A batch script runs on the first of the job's nodes, so what is not here is not there.
  if (std::getenv("SLURMD_NODENAME") != nullptr)
    RETURN_IF_ERROR(check_container(spec, plan.working_directory));
  if (!is_executable_file(plan.rank_program)) {
    return Error(Code::kNotFound,
                 plan.rank_program + " is not there; build or install shardrun-rank beside shardrun");
  }
  if (auto set = check_variables(spec); !set && !dry_run) {
    if (plan.scheduler == "local") return std::move(set).error();
    // sbatch and srun hand our variables on, and a node may have others of its own.
    if (plan.scheduler == "slurm") warnings->push_back(set.error().to_string());
  }
  if (auto useful = check_fewer_nodes(spec, plan); !useful) warnings->push_back(useful.error().to_string());
  if (!spec.program.command.empty()) return warnings;
  warn_of_bubble(spec, plan.batch.gradient_accumulation, *warnings);
  const std::string plugin = plan.comm_plugin(spec.communication.plugin);
  if (::access(plugin.c_str(), R_OK) != 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: there is no comm plugin \"{}\" ({}: {}); build it or choose another "
                             "in [communication] plugin",
                             spec.origin("communication.plugin"), spec.communication.plugin, plugin,
                             std::strerror(errno)));
  }
  const bool ranks_here = plan.scheduler == "local" || std::getenv("SLURMD_NODENAME") != nullptr;
  if (ranks_here && spec.communication.plugin == "nccl") {
    if (const std::string missing = missing_for_nccl(); !missing.empty()) {
      return Error(Code::kInvalid,
                   fmt::format("{}: plugin \"nccl\" cannot work on this machine: {}; or choose \"ofi\"",
                               spec.origin("communication.plugin"), missing));
    }
  }
  if (auto there = check_gpu_library(spec, plan); !there) {
    if (!dry_run) return std::move(there).error();
    warnings->push_back(there.error().to_string());
  }
  return warnings;
}

}  // namespace shardrun::launcher
