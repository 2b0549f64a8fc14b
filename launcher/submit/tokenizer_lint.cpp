#include "launcher/submit/tokenizer_lint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

uint32_t checksum(const std::string& text, uint32_t before = 0) {
  return base::crc32c(std::as_bytes(std::span(text)), before);
}

// What a token file says about who made it (docs/formats.md, "Token files").
struct Maker {
  std::string kind;
  uint32_t hash = 0;
  int32_t begin = -1, end = -1;
};

// What a data file is, as its first bytes tell.
struct DataFile {
  bool is_read = false;        // false: nothing is known of it
  std::optional<Maker> maker;  // of a token file; of plain text there is none
};

DataFile look_at(const std::string& path) {
  constexpr std::string_view kMagic = "SHRDTOKS";
  constexpr size_t kHeaderBytes = 88, kKind = 40, kKindBytes = 16, kHash = 56, kBegin = 60, kEnd = 64;
  constexpr std::array<uint32_t, 2> kVersionAndOrder{1, 0x01020304};
  std::ifstream file(path, std::ios::binary);
  std::array<char, kHeaderBytes> header{};
  file.read(header.data(), header.size());
  const std::string_view bytes(header.data(),
                               static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (bytes.empty()) return {};
  if (!bytes.starts_with(kMagic)) return {true, std::nullopt};
  if (bytes.size() < kHeaderBytes ||
      std::memcmp(header.data() + kMagic.size(), kVersionAndOrder.data(), sizeof kVersionAndOrder) != 0)
    return {};
  Maker maker;
  const std::string_view kind = bytes.substr(kKind, kKindBytes);
  maker.kind = kind.substr(0, kind.find('\0'));
  std::memcpy(&maker.hash, header.data() + kHash, sizeof maker.hash);
  std::memcpy(&maker.begin, header.data() + kBegin, sizeof maker.begin);
  std::memcpy(&maker.end, header.data() + kEnd, sizeof maker.end);
  return {true, std::move(maker)};
}

// A tokenizer beside the weights.
struct Tokenizer {
  std::string path, kind, text;

  // Whether it made a file, whatever its settings of begin and end, or of case, were then.
  bool is(const Maker& maker) const {
    if (kind != maker.kind) return false;
    if (kind == "bpe") return maker.hash == checksum(fmt::format("{}{} {}", text, maker.begin, maker.end));
    const uint32_t hash = checksum(text);
    if (kind == "sentencepiece") return maker.hash == hash;
    for (int flags = 0; flags < 8; ++flags)
      if (maker.hash == checksum(fmt::format("{:03b}", flags), hash)) return true;
    return false;
  }
};

std::vector<Tokenizer> tokenizers_in(const fs::path& folder) {
  constexpr uint64_t kLargest = 64 << 20;
  std::vector<Tokenizer> all;
  for (const auto& [name, kind] :
       {std::pair("tokenizer.json", "bpe"), std::pair("tokenizer.model", "sentencepiece"),
        std::pair("vocab.txt", "wordpiece")}) {
    const std::string path = (folder / name).string();
    if (auto text = base::read_file(path, kLargest)) all.push_back({path, kind, std::move(*text)});
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> data_files(const spec::JobSpec& spec) {
  std::vector<std::pair<std::string, std::string>> all;  // key and path
  const auto add = [&](const std::string& name, const std::vector<std::string>& files) {
    for (size_t i = 0; i < files.size(); ++i) all.emplace_back(fmt::format("{}[{}]", name, i), files[i]);
  };
  add("data.files", spec.data.files);
  add("data.validation", spec.data.validation);
  for (const spec::EvaluationSet& set : spec.evaluation.sets) add("evaluation." + set.name, set.files);
  return all;
}

}  // namespace

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
    if (!file.maker) {
      if (text.empty())
        text = fmt::format(
            "{}: {} is plain text, whose bytes will be the tokens, and the weights of [model] init know "
            "those of {}; "
            "make token files of it: shardrun data --tokenizer {} --output DIR {}",
            spec.origin(key), path, own, own, path);
      continue;
    }
    const Maker& maker = *file.maker;
    if (other.empty() && std::none_of(tokenizers.begin(), tokenizers.end(),
                                      [&](const Tokenizer& one) { return one.is(maker); }))
      other = fmt::format(
          "{}: {} was made by another tokenizer, of the kind {}, than {}, whose tokens the weights of "
          "[model] init "
          "know; make it anew: shardrun data --tokenizer {} --output DIR FILES",
          spec.origin(key), path, maker.kind, own, own);
  }
  std::vector<std::string> warnings;
  for (std::string* one : {&text, &other})
    if (!one->empty()) warnings.push_back(std::move(*one));
  return warnings;
}

}  // namespace shardrun::launcher
