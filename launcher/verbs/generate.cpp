#include <fmt/format.h>

#include "launcher/runs/model_place.h"
#include "launcher/submit/tokenizer_lint.h"
#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {
namespace {

struct GenerateOptions {
  std::string model;  // a folder with config.json, a run, or a checkpoint
  std::string prompt, prompt_tokens, evaluated, system, chat_template, tokenizer, base;
  bool marks_in_text = false, best = false;
  std::string dtype = "auto";
  int64_t max_tokens = 256;
  double temperature = 0.0, top_p = 1.0;
  uint64_t seed = 1;
  int threads = 0;
};

base::Result<int> generate(const GenerateOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto installation, find_installation());
  ASSIGN_OR_RETURN(auto place, find_model(options.model, common, options.best));
  if (!options.tokenizer.empty()) place.tokenizer = options.tokenizer;
  if (!options.base.empty()) place.weights = options.base;
  if (!place.tokenizer.empty()) warn(lint_tokenizer_of_run(place.trained_on, place.tokenizer));
  std::vector<std::string> arguments{installation.rank_program,
                                     "generate",
                                     "--dtype=" + options.dtype,
                                     fmt::format("--max-tokens={}", options.max_tokens),
                                     fmt::format("--temperature={}", options.temperature),
                                     fmt::format("--top-p={}", options.top_p),
                                     fmt::format("--seed={}", options.seed),
                                     fmt::format("--threads={}", options.threads)};
  const std::pair<const char*, const std::string&> texts[] = {{"checkpoint", place.checkpoint},
                                                              {"folder", place.folder},
                                                              {"evaluate", options.evaluated},
                                                              {"tokenizer", place.tokenizer},
                                                              {"prompt", options.prompt},
                                                              {"system", options.system},
                                                              {"prompt-tokens", options.prompt_tokens},
                                                              {"template", options.chat_template},
                                                              {"base", place.weights}};
  for (const auto& [name, text] : texts)
    if (!text.empty()) arguments.push_back(fmt::format("--{}={}", name, text));
  if (options.marks_in_text) arguments.emplace_back("--marks-in-text");
  if (common.json) arguments.emplace_back("--json");
  return become(arguments);
}

}  // namespace

void add_generate(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<GenerateOptions>();
  CLI::App* verb = app.add_subcommand(
      "generate", "Let a model go on with a text, or answer a question, on this machine's CPUs");
  verb->add_option(
          "model", options.model,
          "A folder with config.json and safetensors, a run (its newest checkpoint), or a checkpoint")
      ->required();
  verb->add_option("--prompt", options.prompt,
                   "What the model goes on with; with --template, what a user asks");
  verb->add_option("--template", options.chat_template,
                   "How a conversation becomes text: llama2, llama3, chatml, zephyr, own (the checkpoint's "
                   "chat_template) or none");
  verb->add_flag("--marks-in-text", options.marks_in_text,
                 "Names of special tokens in the prompt, e.g. <|endoftext|>, are these tokens");
  verb->add_option("--system", options.system, "What is said before the conversation, in a --template");
  verb->add_option("--prompt-tokens", options.prompt_tokens,
                   "The prompt as ids, e.g. 1,15043; no tokenizer is needed");
  verb->add_option("--evaluate", options.evaluated,
                   "Instead of a prompt: judges the questions of a file, {\"prompt\", \"answer\"} or "
                   "{\"prompt\", \"choices\", "
                   "\"label\"} a line")
      ->option_text("FILE.jsonl");
  verb->add_option("--tokenizer", options.tokenizer,
                   "byte, or the path of a tokenizer.json or a SentencePiece .model; else the model's own");
  verb->add_option("--base", options.base,
                   "Of a checkpoint with adapters: the weights that they stand beside; else [model] init")
      ->option_text("PATH");
  verb->add_flag("--best", options.best,
                 "The checkpoint with the lowest validation loss ([evaluation] keep_best), not the newest");
  verb->add_option("--max-tokens", options.max_tokens, "How many tokens are generated at most")
      ->capture_default_str();
  verb->add_option("--temperature", options.temperature,
                   "0 takes the likeliest token, 1 draws as the model says")
      ->check(in_range(0.0, 100.0))
      ->capture_default_str();
  verb->add_option("--top-p", options.top_p,
                   "Draws among the likeliest tokens that reach this probability together")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--seed", options.seed, "Decides what is drawn")->capture_default_str();
  verb->add_option("--threads", options.threads, "CPUs to compute with; 0: all")->capture_default_str();
  verb->add_option("--dtype", options.dtype, "Type of the weights in memory; auto: as the files have them")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  add_runs(*verb, line);
  add_common(*verb, line, true);
  verb->footer(
      "Example:\n  shardrun generate SmolLM2-135M-Instruct --template chatml --prompt 'What is a monad?'");
  verb->callback([&] { line.end(generate(options, line.common)); });
}

}  // namespace shardrun::launcher
