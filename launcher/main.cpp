// shardrun: the command line, made of the verbs of launcher/verbs.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "launcher/runs/common.h"
#include "launcher/verbs/command_line.h"
#include "runtime/contract/exit_code.h"

namespace {

// Returns why not all that was printed has been written; "" when it has, or nobody reads any more. What a full
// disk did not take is no answer.
std::string lost_answer() {
  const bool is_flushed = std::fflush(stdout) == 0;
  const int failure = is_flushed ? EIO : errno;
  if (is_flushed && std::ferror(stdout) == 0) return "";
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  const bool is_closed = ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
  return is_closed ? "" : std::strerror(failure);
}

}  // namespace

int main(int argc, char** argv) {
  namespace launcher = shardrun::launcher;
  launcher::CommandLine line;
  line.words.assign(argv + std::min(argc, 1), argv + argc);
  CLI::App app(
      "shardrun launches training jobs on Slurm clusters and on one machine, and trains sharded models.",
      "shardrun");
  app.require_subcommand(1);
  app.set_version_flag("--version", "shardrun " SHARDRUN_VERSION);
  app.footer("Example:\n  shardrun run jobs/tiny-llama.toml\nEach verb has its own --help.");
  launcher::add_verbs(app, line);
  argc = launcher::take_program(argc, argv, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return launcher::usage_error(launcher::better_words(app, argc, argv, error.what()).c_str());
  }
  if (const std::string lost = lost_answer(); !lost.empty()) {
    launcher::say_error(fmt::format("shardrun: error: writing standard output: {}\n", lost));
    if (line.exit_code == 0) return shardrun::contract::kExitInfrastructure;
  }
  return line.exit_code;
}
