#include "launcher/verbs/elsewhere.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "launcher/cluster/kubernetes_jobs.h"
#include "launcher/cluster/load_job.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/schedule/local/temporary_directory.h"
#include "launcher/submit/remote.h"
#include "launcher/submit/snapshot.h"
#include "launcher/verbs/job_line.h"
#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// The words of a verb without those that say where.
std::vector<std::string> words_for_there(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    bool ours = false;
    for (const std::string option : {"--host", "--host-directory", "--host-program"}) {
      if (words[i] == option) {
        ours = true;
        ++i;
        break;
      }
      ours = ours || words[i].starts_with(option + "=");
    }
    if (!ours) kept.push_back(words[i]);
  }
  return kept;
}

Result<base::CommandOutput> ask_there(const RemoteHost& remote, const std::vector<std::string>& words) {
  return run_ssh(ssh_command(remote, in_directory(remote, words)));
}

bool ended_well(const base::CommandOutput& answer) {
  return WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == 0;
}

// What it said on standard error, on one line.
std::string words_of(const base::CommandOutput& answer) {
  std::string words = answer.err.substr(0, answer.err.find_last_not_of('\n') + 1);
  std::replace(words.begin(), words.end(), '\n', ';');
  return words.empty() ? "it ended without a word" : words;
}

// The exit code of the verb there; ssh has 255 for failures of its own.
int code_of(const base::CommandOutput& answer) {
  const int code = WIFEXITED(answer.status) ? WEXITSTATUS(answer.status) : 255;
  return code == 255 ? static_cast<int>(contract::kExitInfrastructure) : code;
}

// Sends what the job needs and submits it there; returns what was said of it.
Result<base::CommandOutput> send(const Submission& submission, const RemoteHost& remote, bool json) {
  ASSIGN_OR_RETURN(auto loaded, load_job(submission.job));
  PlanContext context;
  context.scheduler = "slurm";
  RETURN_IF_ERROR(solve_launch_plan(loaded.spec, context));
  ASSIGN_OR_RETURN(auto folder, TemporaryDirectory::make());
  std::vector<std::string> code;
  if (loaded.spec.program.snapshot != spec::SnapshotKind::kNone) {
    ASSIGN_OR_RETURN(auto snapshot, take_snapshot(loaded.spec, current_directory(), folder.path()));
    warn(snapshot.warnings);
    const std::string name = snapshot.tree + ".tar";
    ASSIGN_OR_RETURN(bool there, has_file(remote, name));
    if (!there) RETURN_IF_ERROR(send_file(remote, snapshot.tar, name));
    code = {"--code=inbox/" + name};
    if (!snapshot.prefix.empty()) code.push_back("--code-prefix=" + snapshot.prefix);
  }
  const std::string spec_name =
      fmt::format("{}-{:.0f}-{}.toml", loaded.spec.name, base::unix_now() * 1e3, ::getpid());
  std::vector<std::string> words = {remote.program, "submit", "inbox/" + spec_name};
  for (const std::string& assignment : overrides_of(submission.job)) words.push_back("--set=" + assignment);
  words.insert(words.end(), code.begin(), code.end());
  if (!submission.after.empty()) words.push_back("--after=" + submission.after);
  if (submission.dry_run) words.emplace_back("--dry-run");
  if (json) words.emplace_back("--json");
  return send_and_run(remote, loaded.text, spec_name, words);
}

bool is_plain_name(const std::string& text) {
  return !text.empty() && text.front() != '.' && text.front() != '-' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

// Returns where the tar file there is unpacked here: below a folder that is not a run's yet.
Result<std::string> fetch(const std::string& run, const CommandLine& line) {
  const RemoteHost& remote = line.remote;
  ASSIGN_OR_RETURN(auto answer, ask_there(remote, {remote.program, "results", "--json", "--", run}));
  if (!ended_well(answer))
    return Error(Code::kNotFound, fmt::format("{}: {}", remote.host, words_of(answer)));
  ASSIGN_OR_RETURN(auto record, record::parse_run_record(answer.out));
  if (!is_plain_name(record.name) || !is_plain_name(record.id))
    return Error(Code::kCorrupt, remote.host + ": the run's name or id is no folder's name");
  const std::string to = fmt::format("{}/{}", absolute_path(line.common.runs_directory), record.name);
  RETURN_IF_ERROR(base::make_directories(to));
  std::vector<std::string> argv = {
      "sh", "-c",
      "to=$1; shift; \"$@\" | tar --extract --no-same-owner --no-same-permissions --directory=\"$to\"", "sh",
      to};
  const std::vector<std::string> pack = {"tar",
                                         "--create",
                                         "--directory=runs/" + record.name,
                                         "--exclude=" + record.id + "/checkpoints",
                                         "--exclude=" + record.id + "/code",
                                         "--exclude=" + record.id + "/profile",
                                         "--exclude=" + record.id + "/conductor.lock*",
                                         "--exclude=" + record.id + "/.writing_*",
                                         record.id};
  for (std::string& word : ssh_command(remote, in_directory(remote, pack))) argv.push_back(std::move(word));
  ASSIGN_OR_RETURN(auto fetched, run_ssh(argv, "", kFileLimit));
  if (!ended_well(fetched)) return Error(Code::kIo, fmt::format("{}: {}", remote.host, words_of(fetched)));
  return to + "/" + record.id;
}

}  // namespace

void add_host(CLI::App& verb, CommandLine& line) {
  CLI::Option* host =
      verb.add_option("--host", line.remote.host, "Do it on this machine, through ssh: user@login-node");
  verb.add_option("--host-directory", line.remote.directory, "The folder there that jobs and runs/ lie in")
      ->capture_default_str()
      ->needs(host);
  verb.add_option("--host-program", line.remote.program, "shardrun there")
      ->capture_default_str()
      ->needs(host);
}

void add_kubernetes(CLI::App& verb, CommandLine& line) {
  verb.add_option("--kubernetes", line.name_space,
                  "The job is one that `shardrun render` made, in this namespace of Kubernetes");
}

Result<int> kubernetes_status(const std::string& name, const CommandLine& line) {
  if (name.empty()) return usage_error("--kubernetes needs the job's name");
  ASSIGN_OR_RETURN(const auto job, find_kubernetes_job(name, line.name_space));
  print_text("{}", kubernetes_text(job));
  return contract::kExitDone;
}

Result<int> kubernetes_logs(const std::string& name, bool follow, const CommandLine& line) {
  ASSIGN_OR_RETURN(const auto job, find_kubernetes_job(name, line.name_space));
  return become(kubernetes_logs_command(job, follow));
}

Result<int> kubernetes_cancel(const std::string& name, const CommandLine& line) {
  ASSIGN_OR_RETURN(const auto job, find_kubernetes_job(name, line.name_space));
  return become(kubernetes_cancel_command(job));
}

Result<int> run_elsewhere(const CommandLine& line) {
  RETURN_IF_ERROR(check_host(line.remote));
  std::vector<std::string> words = {line.remote.program};
  for (std::string& word : words_for_there(line.words)) words.push_back(std::move(word));
  const bool terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  return become(ssh_command(line.remote, in_directory(line.remote, words), terminal),
                "ssh cannot be run; install OpenSSH's client");
}

Result<int> submit_elsewhere(const Submission& submission, const CommandLine& line) {
  RETURN_IF_ERROR(check_host(line.remote));
  ASSIGN_OR_RETURN(auto answer, send(submission, line.remote, line.common.json));
  say_error(base::visible_lines(answer.err));
  print_text("{}", answer.out);
  if (ended_well(answer) && !line.common.json && !submission.dry_run)
    print_text("  from here      shardrun logs -f NAME --host {}\n", line.remote.host);
  return code_of(answer);
}

Result<int> fetch_run(const std::string& run, const CommandLine& line) {
  RETURN_IF_ERROR(check_host(line.remote));
  ASSIGN_OR_RETURN(auto here, fetch(run, line));
  print_text("fetched {}\n", here);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
