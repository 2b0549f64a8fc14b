// The verb that reads checkpoints whole; becomes shardrun-rank's tool.
#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {
namespace {

struct VerifyOptions {
  std::string checkpoint;  // a run, a folder of checkpoints, or one of them
};

int verify(const VerifyOptions& options, const CommonOptions& common) {
  const auto installation = find_installation();
  if (!installation) return fail(installation.error(), common);
  const auto folder = find_checkpoints(options.checkpoint, common);
  if (!folder) return fail(folder.error(), common);
  return become({installation->rank_program, "verify", *folder}, common);
}

}  // namespace

void add_verify(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<VerifyOptions>();
  CLI::App* verb = app.add_subcommand("verify", "Read checkpoints whole and say what is damaged");
  verb->add_option("checkpoint", options.checkpoint, "A run, a folder of checkpoints, or one of them")
      ->required();
  verb->add_option("--runs", line.common.runs_directory, "Where run directories are looked for")
      ->capture_default_str();
  add_common(*verb, line, false);
  verb->footer("Ends with 0 when all are whole, else with 1.\nExample:\n  shardrun verify tiny-llama");
  verb->callback([&] { line.exit_code = verify(options, line.common); });
}

}  // namespace shardrun::launcher
