#include "launcher/submit/remote.h"

#include <sys/wait.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/state_folder.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr int kSshFailed = 255;
// What receives a file there, as $1/inbox/$2 of $3 bytes. A cut connection ends the input early: what is not whole does not get its
// name.
constexpr std::string_view kReceive =
    "umask 077; mkdir -p -- \"$1/inbox\" && cd -- \"$1\" && cat >\"inbox/$2.$$\" && "
    "{ [ \"$(wc -c <\"inbox/$2.$$\")\" -eq \"$3\" ] || { rm -f -- \"inbox/$2.$$\"; exit 255; }; } && "
    "mv -- \"inbox/$2.$$\" \"inbox/$2\" || exit 255";
// A command that ssh starts reads no profile on Debian and Ubuntu, and /etc/profile.d is where clusters put Slurm's programs and
// shardrun into PATH. It is read where $1 or sbatch is not found, by bash, for which profiles are written: a line of theirs that dash
// does not know, or that fails in it, would end it without a word. A function has its own $1, so that a profile changes no words.
constexpr std::string_view kFindPrograms =
    "profile='profile() { . /etc/profile; }; profile >/dev/null 2>&1 </dev/null; exec \"$@\"'; "
    "{ command -v -- \"$1\" && command -v sbatch; } >/dev/null 2>&1 || [ ! -r /etc/profile ] || "
    "set -- \"$(command -v bash || echo sh)\" -c \"$profile\" sh \"$@\"; ";
constexpr std::string_view kArrived = "shardrun: it arrived";  // a line of standard error there

// Quotes for whichever shell the user has there: csh replaces a ! also in quotes, and fish reads \\ and \' there.
std::string quoted_for_login_shell(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    const bool outside = c == '\'' || c == '!' || c == '\\';
    out += outside ? std::string("'\\") + c + "'" : std::string(1, c);
  }
  return out + "'";
}

// The socket of the shared connection. A path of a UNIX socket has at most 107 bytes, of which ssh adds 40 for %C and 17 while it
// makes the socket.
std::vector<std::string> shared_connection() {
  constexpr size_t kLongestFolder = 40;
  const auto state = base::state_folder();
  if (!state) return {};
  const std::string folder = *state + "/ssh";
  if (folder.size() > kLongestFolder || !base::make_directories(folder, 0700)) return {};
  return {"-o", "ControlMaster=auto", "-o", "ControlPath=" + folder + "/%C", "-o", "ControlPersist=600"};
}

// The directory there as its shell takes it in quotes, in which a ~ that no shell here has replaced would be a folder's name.
std::string folder_of(const RemoteHost& remote) {
  const std::string& folder = remote.directory;
  return folder == "~" || folder.starts_with("~/") ? "." + folder.substr(1) : folder;
}

Error ssh_error(const RemoteHost& remote, const base::CommandOutput& answer) {
  const std::string words = answer.err.empty() ? answer.out : answer.err;
  const int status = WIFEXITED(answer.status) ? WEXITSTATUS(answer.status) : kSshFailed;
  return Error(Code::kIo,
               fmt::format("{}: {}: {}", status == kSshFailed ? "ssh" : "the command", remote.host,
                           words.empty() ? "it ended without a word" : spec::printable(words, 2000)));
}

// The words that receive a file and then become `words` there.
std::vector<std::string> receive_command(const RemoteHost& remote, const std::string& name, uint64_t bytes,
                                         const std::vector<std::string>& words) {
  std::string script(kReceive);
  if (!words.empty())
    script += fmt::format("; echo '{}' >&2; shift 3; umask \"$mask\"; {}exec \"$@\" </dev/null", kArrived,
                          kFindPrograms);
  std::vector<std::string> all = {
      "sh", "-c", "mask=$(umask); " + script, "sh", folder_of(remote), name, std::to_string(bytes)};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace

Result<void> check_host(const RemoteHost& remote) {
  const bool clean = !remote.host.empty() && remote.host.front() != '-' &&
                     remote.host.find_first_of(" \t\r\n\"'\\`$;&|<>") == std::string::npos;
  if (clean && !remote.directory.empty() && !remote.program.empty()) return {};
  return Error(Code::kInvalid,
               fmt::format("--host {}: no host; write --host user@login-node", spec::printable(remote.host)));
}

std::vector<std::string> ssh_command(const RemoteHost& remote, const std::vector<std::string>& words,
                                     bool terminal) {
  std::vector<std::string> argv = {"ssh"};
  for (std::string& word : shared_connection()) argv.push_back(std::move(word));
  argv.emplace_back(terminal ? "-t" : "-T");
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted_for_login_shell(word);
  argv.insert(argv.end(), {"--", remote.host, line});
  return argv;
}

Result<base::CommandOutput> run_ssh(const std::vector<std::string>& argv, const std::string& input,
                                    std::chrono::milliseconds limit) {
  return base::finish_command(argv, input, limit, {}, {}, base::Group::kOurs);
}

std::vector<std::string> in_directory(const RemoteHost& remote, const std::vector<std::string>& words) {
  std::vector<std::string> all = {"sh", "-c",
                                  fmt::format("cd -- \"$1\" && shift || exit; {}exec \"$@\"", kFindPrograms),
                                  "sh", folder_of(remote)};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

Result<void> send_file(const RemoteHost& remote, const std::string& path, const std::string& name) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  if (failure) return Error(Code::kIo, path + ": " + failure.message());
  std::vector<std::string> argv = {"sh", "-c", "exec \"$@\" <\"$0\"", path};
  for (std::string& word : ssh_command(remote, receive_command(remote, name, bytes, {})))
    argv.push_back(std::move(word));
  ASSIGN_OR_RETURN(auto answer, run_ssh(argv, "", kFileLimit));
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == 0) return {};
  return ssh_error(remote, answer).context(fmt::format("{} was not sent", path));
}

Result<base::CommandOutput> send_and_run(const RemoteHost& remote, const std::string& text,
                                         const std::string& name, const std::vector<std::string>& words) {
  ASSIGN_OR_RETURN(auto answer,
                   run_ssh(ssh_command(remote, receive_command(remote, name, text.size(), words)), text));
  const size_t arrived = answer.err.find(kArrived);
  if (arrived != std::string::npos) answer.err.erase(arrived, kArrived.size() + 1);
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) != kSshFailed) return answer;
  return ssh_error(remote, answer)
      .context(name +
               (arrived == std::string::npos
                    ? " was not sent"
                    : " arrived, and the connection was lost before it was answered; see `shardrun status "
                      "--host`"));
}

Result<bool> has_file(const RemoteHost& remote, const std::string& name) {
  ASSIGN_OR_RETURN(auto answer,
                   run_ssh(ssh_command(remote, {"test", "-f", folder_of(remote) + "/inbox/" + name})));
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) <= 1) return WEXITSTATUS(answer.status) == 0;
  return ssh_error(remote, answer);
}

}  // namespace shardrun::launcher
