#include "runtime/trainer/train/sample_text.h"

#include <filesystem>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/record/token_file_format.h"

namespace shardrun::train {
namespace {

namespace fs = std::filesystem;

// Markdown takes lines behind four spaces as they are.
std::string as_block(const std::string& text) {
  std::istringstream lines(base::visible_lines(text));
  std::string block;
  for (std::string line; std::getline(lines, line);) block += "    " + line + "\n";
  return block;
}

}  // namespace

std::unique_ptr<data::Tokenizer> find_tokenizer(const data::TokenizerFacts& facts,
                                                const std::string& weights) {
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(weights, ignored) ? fs::path(weights) : fs::path(weights).parent_path();
  std::vector<std::string> names = {"byte"};
  for (const auto& [name, kind] : record::kTokenizerFiles) names.push_back((folder / name).string());
  for (const std::string& name : names) {
    auto opened = data::open_tokenizer(name);
    if (opened && (*opened)->facts() == facts) return std::move(*opened);
  }
  return nullptr;
}

std::string sample_text(const data::Tokenizer& tokenizer, const model::Batch& batch, int64_t length) {
  const int64_t tokens = batch.lengths.empty() ? length : batch.lengths.front();
  const bool has_words = tokenizer.facts().kind == "wordpiece";  // whose tokens say nothing of blanks
  std::string text, learned;
  int64_t targets = 0;
  for (int64_t at = 0; at < tokens; ++at) {
    text += tokenizer.spelling_of(batch.tokens[at]) + (has_words ? " " : "");
    if (batch.targets[at] < 0) continue;
    ++targets;
    learned += tokenizer.spelling_of(batch.targets[at]) + (has_words ? " " : "");
  }
  std::string sample =
      fmt::format("{} tokens, of which {} are predicted:\n\n{}", tokens, targets, as_block(text));
  if (targets + 1 < tokens) sample += fmt::format("\nThe predicted ones:\n\n{}", as_block(learned));
  return sample;
}

}  // namespace shardrun::train
