// shardrun: the command line, made of the verbs of launcher/verbs.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include <CLI/CLI.hpp>

#include "launcher/runs/common.h"
#include "launcher/verbs/command_line.h"
#include "runtime/base/limits.h"

namespace {

// What is opened later must not get the number of a stream that was closed when we were started, as by a service or by `>&-`: what
// is said to people would go there. What is written to standard output is still lost with an error.
void open_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

}  // namespace

int main(int argc, char** argv) {
  namespace launcher = shardrun::launcher;
  open_closed_streams();
  ::signal(SIGXFSZ, SIG_IGN);  // writing past `ulimit -f` is an error that names the file
  launcher::CommandLine line;
  if (auto enough = shardrun::base::refuse_small_stack(); !enough)
    return launcher::fail(enough.error(), line.common);
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
  return launcher::finish_output(line.exit_code);
}
