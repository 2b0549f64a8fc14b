#include <fmt/format.h>

#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {
namespace {

struct DataOptions {
  std::string tokenizer, output, chat_template;
  double validation = 0.0;
  int64_t show = 0;
  uint64_t seed = 1;
  bool split_on_blank_lines = false, no_special_tokens = false, marks_in_text = false;
  std::string text_field;
  std::vector<std::string> files;
};

base::Result<int> data(const DataOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto installation, find_installation());
  std::vector<std::string> arguments{installation.rank_program, "data", "--tokenizer=" + options.tokenizer,
                                     fmt::format("--validation={}", options.validation),
                                     fmt::format("--seed={}", options.seed)};
  if (!options.output.empty()) arguments.push_back("--output=" + options.output);
  if (options.show > 0) arguments.push_back(fmt::format("--show={}", options.show));
  if (!options.chat_template.empty()) arguments.push_back("--template=" + options.chat_template);
  if (!options.text_field.empty()) arguments.push_back("--text-field=" + options.text_field);
  if (options.no_special_tokens) arguments.emplace_back("--no-special-tokens");
  if (options.marks_in_text) arguments.emplace_back("--marks-in-text");
  if (options.split_on_blank_lines) arguments.emplace_back("--split-on-blank-lines");
  if (common.json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), options.files.begin(), options.files.end());
  return become(arguments);
}

}  // namespace

void add_data(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<DataOptions>();
  CLI::App* verb = app.add_subcommand("data", "Turn text into token files for [data] files and validation");
  verb->add_option("files", options.files, "Text files, or .jsonl with text or messages in each line")
      ->required();
  verb->add_option("--tokenizer", options.tokenizer,
                   "byte, or the path of a tokenizer.json, a SentencePiece .model, or BERT's vocab.txt")
      ->required();
  CLI::Option* output =
      verb->add_option("--output", options.output, "Folder for train.tokens and validation.tokens");
  verb->add_option("--show", options.show,
                   "Show so many documents, and which of their tokens are learned; write nothing")
      ->check(CLI::Range(1, 1 << 30))
      ->excludes(output);
  verb->add_option("--validation", options.validation, "Share of the documents to hold out, e.g. 0.01")
      ->capture_default_str();
  verb->add_option("--seed", options.seed, "Decides which documents are held out")->capture_default_str();
  verb->add_option("--template", options.chat_template,
                   "How conversations become text: llama2, llama3, chatml, zephyr, own (the checkpoint's "
                   "chat_template) or none");
  verb->add_option("--text-field", options.text_field,
                   "The member of a line of JSON that holds its text, whatever else is there")
      ->default_str("text");
  verb->add_flag("--marks-in-text", options.marks_in_text,
                 "Names of special tokens in a text, e.g. <|endoftext|>, are these tokens");
  verb->add_flag("--no-special-tokens", options.no_special_tokens,
                 "No begin and end tokens around documents");
  verb->add_flag("--split-on-blank-lines", options.split_on_blank_lines,
                 "Each paragraph of a text file is a document, not the whole file");
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun data --tokenizer byte --validation 0.1 --output tokens *.txt");
  verb->callback([&] { line.end(data(options, line.common)); });
}

}  // namespace shardrun::launcher
