// The only file that includes the SentencePiece library.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/tokenizer_kinds.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  Result<void> load(const std::string& path, const std::string& model) {
    try {
      const auto status = library_.LoadFromSerializedProto(model);
      if (!status.ok())
        return Error(Code::kCorrupt, fmt::format("{} is no SentencePiece model: {}", path, status.message()));
    } catch (const std::exception& refused) {  // by the trie of pieces, e.g. one that begins with a zero byte
      return Error(Code::kCorrupt, fmt::format("{} is no SentencePiece model: {}", path, refused.what()));
    }
    const int pieces = library_.GetPieceSize();
    if (pieces < 1 || pieces > static_cast<int>(record::kMaximumVocabulary))
      return Error(Code::kCorrupt,
                   fmt::format("{} is no SentencePiece model: it has {} pieces", path, pieces));
    facts_ = {.kind = "sentencepiece",
              .hash = record::sentencepiece_hash(model),
              .vocabulary = pieces,
              .special = {library_.bos_id(), library_.eos_id(), library_.unk_id(), library_.pad_id(), -1}};
    return {};
  }

  const TokenizerFacts& facts() const override { return facts_; }

  int32_t control_token(std::string_view content) const override {
    const int id = library_.PieceToId(content);
    return library_.IsControl(id) ? id : -1;
  }

  std::vector<std::string> control_names() const override {
    std::vector<std::string> names;
    for (int id = 0; id < library_.GetPieceSize(); ++id)
      if (library_.IsControl(id)) names.push_back(library_.IdToPiece(id));
    return names;
  }

  std::string bytes_of(int32_t id) const override {
    if (id < 0 || id >= library_.GetPieceSize() || library_.IsControl(id) || library_.IsUnknown(id))
      return "";
    if (library_.IsByte(id))
      return std::string(1, static_cast<char>(std::stoi(library_.IdToPiece(id).substr(3, 2), nullptr, 16)));
    return with_spaces(library_.IdToPiece(id));
  }

  std::string spelling_of(int32_t id) const override {
    const bool known = id >= 0 && id < library_.GetPieceSize();
    return known && library_.IsControl(id) ? library_.IdToPiece(id) : Tokenizer::spelling_of(id);
  }

  Result<void> encode(std::string_view text, std::vector<Token>& out) const override {
    SHARDRUN_CHECK(text.size() <= kMaximumTextBytes);
    sentencepiece::ImmutableSentencePieceText pieces;
    if (const auto status = library_.Encode(text, pieces.mutable_proto()); !status.ok())
      return Error(Code::kInvalid, fmt::format("SentencePiece refuses the text: {}", status.message()));
    const size_t first = out.size(), count = pieces.pieces_size();
    for (size_t i = 0; i < count; ++i) {
      const auto piece = pieces.pieces(static_cast<int>(i));
      out.push_back({static_cast<int32_t>(piece.id()), piece.begin() < piece.end() ? piece.end() : 0});
    }
    // When a character falls back to bytes, only its last byte is reported: the other bytes end where that one
    // does.
    uint32_t end = static_cast<uint32_t>(text.size());
    for (size_t i = out.size(); i-- > first;) end = out[i].end = out[i].end > 0 ? out[i].end : end;
    return {};
  }

 private:
  sentencepiece::SentencePieceProcessor library_;
  TokenizerFacts facts_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_sentencepiece_tokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const auto model, base::read_file(path));
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  RETURN_IF_ERROR(tokenizer->load(path, model));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace shardrun::data
