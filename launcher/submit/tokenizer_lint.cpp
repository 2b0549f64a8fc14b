#include "launcher/submit/tokenizer_lint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "launcher/submit/data_files.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargestTokenizer = 64 << 20;  // bytes

DataFile look_at(const std::string& path) {
  std::array<char, sizeof(record::TokenFileHeader)> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  return data_file_of(std::string_view(begin.data(), static_cast<size_t>(file.gcount())));
}

std::string_view kind_of(const record::TokenFileHeader& header) {
  const std::string_view kind(header.tokenizer.data(), header.tokenizer.size());
  return kind.substr(0, kind.find('\0'));
}

// A tokenizer beside the weights.
struct Tokenizer {
  std::string path, kind, text;

  // Whether it made a file, whatever its settings of begin and end, or of case, were then.
  bool made(const record::TokenFileHeader& header) const {
    if (kind != kind_of(header)) return false;
    if (kind == "byte") return true;
    if (kind == "bpe")
      return header.tokenizer_hash == record::bpe_hash(text, header.special[0], header.special[1]);
    if (kind == "sentencepiece") return header.tokenizer_hash == record::sentencepiece_hash(text);
    for (const bool lower : {false, true})
      for (const bool strip : {false, true})
        for (const bool split : {false, true})
          if (header.tokenizer_hash == record::wordpiece_hash(text, lower, strip, split)) return true;
    return false;
  }
};

std::vector<Tokenizer> tokenizers_in(const fs::path& folder) {
  std::vector<Tokenizer> all;
  for (const auto& [name, kind] : record::kTokenizerFiles) {
    const std::string path = (folder / name).string();
    if (auto text = base::read_file(path, kLargestTokenizer)) all.push_back({path, kind, std::move(*text)});
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> data_files(const spec::JobSpec& spec) {
  std::vector<std::pair<std::string, std::string>> all;  // key and path
  const auto add = [&](const std::string& name, const std::vector<std::string>& files) {
    for (size_t i = 0; i < files.size(); ++i) all.emplace_back(fmt::format("{}[{}]", name, i), files[i]);
  };
  for (const auto& [name, files] : data_lists(spec)) add(name, *files);
  return all;
}

}  // namespace

DataFile data_file_of(std::string_view begin) {
  if (begin.empty()) return {};
  if (!begin.starts_with(record::kTokenFileMagic)) return {true, std::nullopt};
  record::TokenFileHeader header;
  if (begin.size() < sizeof header) return {};
  std::memcpy(&header, begin.data(), sizeof header);
  const bool is_ours =
      header.version == record::kTokenFileVersion && header.byte_order == record::kByteOrderMark;
  if (!is_ours || !record::header_fault(header).empty()) return {};
  return {true, header};
}

std::vector<std::string> lint_tokenizer(const spec::JobSpec& spec, const std::string& working_directory) {
  if (!spec.program.command.empty() || spec.model.init == "random") return {};
  const fs::path here = working_directory, init = here / spec.model.init;
  std::error_code ignored;
  const auto tokenizers = tokenizers_in(fs::is_directory(init, ignored) ? init : init.parent_path());
  if (tokenizers.empty()) return {};
  const std::string& own = tokenizers.front().path;
  std::string text, other;  // the first warning of each kind
  for (const auto& [key, path] : data_files(spec)) {
    const DataFile file = look_at((here / path).string());
    if (!file.is_read) continue;
    if (!file.tokens) {
      if (text.empty())
        text = fmt::format(
            "{}: {} is plain text, whose bytes will be the tokens, and the weights of [model] init know "
            "those of {}; make token files of it: shardrun data --tokenizer {} --output DIR {}",
            spec.origin(key), path, own, own, path);
      continue;
    }
    if (other.empty() && std::none_of(tokenizers.begin(), tokenizers.end(),
                                      [&](const Tokenizer& one) { return one.made(*file.tokens); }))
      other = fmt::format(
          "{}: {} was made by another tokenizer, of the kind {}, than {}, whose tokens the weights of "
          "[model] init know; make it anew: shardrun data --tokenizer {} --output DIR FILES",
          spec.origin(key), path, kind_of(*file.tokens), own, own);
  }
  std::vector<std::string> warnings;
  for (std::string* one : {&text, &other})
    if (!one->empty()) warnings.push_back(std::move(*one));
  return warnings;
}

std::vector<std::string> lint_tokenizer_of_run(const std::vector<std::string>& trained_on,
                                               const std::string& name) {
  std::vector<Tokenizer> tokenizers;
  std::error_code ignored;
  if (name == "byte") {
    tokenizers = {{name, "byte", ""}};
  } else if (fs::is_directory(name, ignored)) {
    tokenizers = tokenizers_in(name);
  } else if (auto text = base::read_file(name, kLargestTokenizer)) {
    const char* kind = name.ends_with(".model")  ? "sentencepiece"
                       : name.ends_with(".json") ? "bpe"
                                                 : "wordpiece";
    tokenizers = {{name, kind, std::move(*text)}};
  }
  if (tokenizers.empty()) return {};
  for (const std::string& path : trained_on) {
    const DataFile file = look_at(path);
    if (!file.is_read) continue;
    const bool is_its = std::any_of(tokenizers.begin(), tokenizers.end(), [&](const Tokenizer& one) {
      return file.tokens ? one.made(*file.tokens) : one.kind == "byte";
    });
    if (is_its) continue;
    return {fmt::format(
        "the run was trained on {}, {}, and not of {}, to which its ids are other words; name the "
        "tokenizer of the data with --tokenizer",
        path,
        file.tokens ? fmt::format("tokens of another tokenizer of the kind {}", kind_of(*file.tokens))
                    : std::string("plain text, whose tokens are those of \"byte\""),
        name)};
  }
  return {};
}

}  // namespace shardrun::launcher
