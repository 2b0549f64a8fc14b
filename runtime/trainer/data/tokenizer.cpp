#include "runtime/trainer/data/tokenizer.h"

#include <fmt/format.h>

#include "runtime/trainer/data/tokenizer_kinds.h"

namespace shardrun::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  const TokenizerFacts& facts() const override { return facts_; }
  Result<void> encode(std::string_view text, std::vector<Token>& out) const override {
    SHARDRUN_CHECK(text.size() <= kMaximumTextBytes);
    for (size_t i = 0; i < text.size(); ++i)
      out.push_back({static_cast<unsigned char>(text[i]), static_cast<uint32_t>(i + 1)});
    return {};
  }
  std::string bytes_of(int32_t id) const override {
    return id >= 0 && id < kByteVocabulary ? std::string(1, static_cast<char>(id)) : "";
  }

 private:
  TokenizerFacts facts_ = byte_tokenizer_facts();
};

}  // namespace

TokenizerFacts byte_tokenizer_facts() {
  return {.kind = "byte", .hash = 0, .vocabulary = kByteVocabulary, .special = {.end = kDocumentSeparator}};
}

std::string Tokenizer::spelling_of(int32_t id) const {
  const std::string bytes = bytes_of(id);
  return bytes.empty() ? fmt::format("<{}>", id) : bytes;
}

std::string with_spaces(std::string_view piece) {
  constexpr std::string_view kMark = "\xe2\x96\x81";
  std::string text;
  while (!piece.empty()) {
    const bool marked = piece.starts_with(kMark);
    text += marked ? ' ' : piece.front();
    piece.remove_prefix(marked ? kMark.size() : 1);
  }
  return text;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& name) {
  const auto ends_with = [&](std::string_view ending) {
    return name.ends_with(ending) &&
           (name.size() == ending.size() || name[name.size() - ending.size() - 1] == '/');
  };
  if (name == "byte") return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  if (name.ends_with(".model")) return open_sentencepiece_tokenizer(name);
  if (ends_with("tokenizer.json")) return open_bpe_tokenizer(name);
  if (ends_with("vocab.txt")) return open_wordpiece_tokenizer(name);
  return base::Error(
      base::Code::kInvalid,
      fmt::format("there is no tokenizer \"{}\"; use byte, or the path of a SentencePiece .model "
                  "file, a tokenizer.json or a vocab.txt",
                  name));
}

}  // namespace shardrun::data
