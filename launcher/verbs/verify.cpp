// The verb that reads checkpoints whole; becomes shardrun-rank's tool.
#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {
namespace {

struct VerifyOptions {
  std::string checkpoint;  // a run, a folder of checkpoints, or one of them
};

base::Result<int> verify(const VerifyOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto installation, find_installation());
  ASSIGN_OR_RETURN(const auto folder, find_checkpoints(options.checkpoint, common));
  return become({installation.rank_program, "verify", folder});
}

}  // namespace

void add_verify(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<VerifyOptions>();
  CLI::App* verb = app.add_subcommand("verify", "Read checkpoints whole and say what is damaged");
  verb->add_option("checkpoint", options.checkpoint, "A run, a folder of checkpoints, or one of them")
      ->required();
  add_runs(*verb, line);
  add_common(*verb, line, false);
  verb->footer("Ends with 0 when all are whole, else with 1.\nExample:\n  shardrun verify tiny-llama");
  verb->callback([&] { line.end(verify(options, line.common)); });
}

}  // namespace shardrun::launcher
