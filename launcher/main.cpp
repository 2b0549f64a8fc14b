// shardrun: the command line, made of the verbs of launcher/verbs.
#include <algorithm>

#include <CLI/CLI.hpp>

#include "launcher/runs/common.h"
#include "launcher/verbs/command_line.h"

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
  return launcher::finish_output(line.exit_code);
}
