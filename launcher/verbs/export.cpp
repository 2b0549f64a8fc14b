#include <filesystem>

#include <fmt/format.h>

#include "launcher/agent/child_program.h"
#include "launcher/runs/model_place.h"
#include "launcher/submit/rules.h"
#include "launcher/submit/tokenizer_lint.h"
#include "launcher/verbs/command_line.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

struct ExportOptions {
  std::string checkpoint;  // a run, a folder of checkpoints, or one of them
  std::string output;
  std::string tokenizer;  // a folder, or a file in it; empty: of the weights that the run began with
  std::string base;       // the weights that adapters stand beside; empty: that the run began with
  std::string push;       // a repository of a hub; empty: none
  bool adapter = false, best = false, gguf = false;
  std::string dtype = "bf16";
  uint64_t max_shard_bytes = 5'000'000'000;
};

// Exports, then lets the hub's own program upload the folder. That one finds its token itself (hf auth login, HF_TOKEN,
// HF_TOKEN_PATH), so we never see it.
base::Result<int> export_and_push(const std::vector<std::string>& arguments, const ExportOptions& options,
                                  const CommonOptions& common) {
  const std::string hf = find_on_path("hf");
  if (hf.empty())
    return base::Error(base::Code::kInvalid,
                       "--push: no program hf is on the PATH; install huggingface_hub, or leave it out");
  ASSIGN_OR_RETURN(const auto exported, run_child_program(arguments, /*stop_fd=*/-1, /*quiet_stdout=*/false));
  if (exported != contract::kExitDone) return exported;
  ASSIGN_OR_RETURN(const auto pushed, run_child_program({hf, "upload", options.push,
                                                         absolute_path(options.output), ".", "--private"},
                                                        /*stop_fd=*/-1, common.json));
  if (pushed == 0) return contract::kExitDone;
  return base::Error(
      base::Code::kIo,
      fmt::format("hf ended with {}; the export is whole, and `hf upload {} {} .` makes up for it", pushed,
                  options.push, options.output));
}

base::Result<int> export_weights(const ExportOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto installation, find_installation());
  ASSIGN_OR_RETURN(const auto place, find_model(options.checkpoint, common, options.best));
  if (!place.folder.empty()) {
    return base::Error(
        base::Code::kInvalid,
        fmt::format("{}: is no checkpoint, but a folder as an export makes them", place.folder));
  }
  const std::string beside = place.origin.empty() ? "" : tokenizer_in(place.origin);
  std::string companions = options.tokenizer.empty() && !beside.empty() && place.tokenizer == beside
                               ? place.origin
                               : options.tokenizer;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(companions, ignored))
    companions = std::filesystem::absolute(companions, ignored).parent_path().string();
  if (!companions.empty()) warn(lint_tokenizer_of_run(place.trained_on, companions));
  std::vector<std::string> arguments{
      installation.rank_program,          "export",
      "--checkpoint=" + place.checkpoint, "--output=" + options.output,
      "--dtype=" + options.dtype,         fmt::format("--max-shard-bytes={}", options.max_shard_bytes)};
  if (!companions.empty()) arguments.push_back("--companions=" + companions);
  if (place.run) arguments.push_back("--run=" + place.run->root);
  if (!place.origin.empty()) arguments.push_back("--origin=" + place.origin);
  const std::string& base = options.base.empty() ? place.weights : options.base;
  if (!base.empty()) arguments.push_back("--base=" + base);
  if (options.adapter) arguments.emplace_back("--adapter");
  if (options.gguf) arguments.emplace_back("--gguf");
  if (common.json) arguments.emplace_back("--json");
  if (options.push.empty()) return become(arguments);
  return export_and_push(arguments, options, common);
}

}  // namespace

void add_export(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<ExportOptions>();
  CLI::App* verb = app.add_subcommand("export", "Turn a checkpoint into safetensors that transformers load");
  verb->add_option("checkpoint", options.checkpoint,
                   "A run (its newest checkpoint), a folder of checkpoints, or one of them")
      ->required();
  verb->add_option("--output", options.output, "Folder to make")->required();
  verb->add_option("--tokenizer", options.tokenizer,
                   "A folder with the model's tokenizer, or a file there; else that of [model] init")
      ->option_text("PATH");
  verb->add_option("--base", options.base,
                   "Of a checkpoint with adapters: the weights that they stand beside; else [model] init")
      ->option_text("PATH");
  verb->add_flag("--adapter", options.adapter,
                 "Adapters alone, as PEFT has them, instead of merged into the weights");
  verb->add_flag("--gguf", options.gguf, "One file for llama.cpp, model.gguf, with the tokenizer in it");
  verb->add_option(
          "--push", options.push,
          "Then uploads the folder to this repository of the Hugging Face hub, by the program hf and its "
          "token; a new one is private")
      ->option_text("USER/MODEL")
      ->check([](const std::string& name) {
        return name.find('/') != std::string::npos && name.front() != '-' ? "" : "write it as user/model";
      });
  verb->add_flag("--best", options.best,
                 "The checkpoint with the lowest validation loss ([evaluation] keep_best), not the newest");
  verb->add_option("--dtype", options.dtype, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  verb->add_option("--max-shard-size", options.max_shard_bytes, "Largest file, e.g. 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->default_str("5GB");
  add_runs(*verb, line);
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun export tiny-llama --output tiny-llama-hf");
  verb->callback([&] { line.end(export_weights(options, line.common)); });
}

}  // namespace shardrun::launcher
