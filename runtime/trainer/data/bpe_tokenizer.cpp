#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/bpe/tokenizer_json.h"
#include "runtime/trainer/data/tokenizer_kinds.h"

namespace shardrun::data {
namespace {

using bpe::AddedToken;
using bpe::Form;
using bpe::Range;

// Finds added tokens in a text: the leftmost, and of those that begin there the longest.
class AddedTokens {
 public:
  void add(AddedToken token) {
    begins_[static_cast<unsigned char>(token.content[0])] = true;
    tokens_.push_back(std::move(token));
  }
  void sort() {
    std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }
  bool empty() const { return tokens_.empty(); }

  struct Found {
    Range range;
    int32_t id = 0;
  };
  std::optional<Found> find(std::string_view text, size_t from) const {
    for (size_t at = from; at < text.size(); ++at) {
      if (!begins_[static_cast<unsigned char>(text[at])]) continue;
      for (const AddedToken& token : tokens_)
        if (text.substr(at).starts_with(token.content))
          return Found{{at, at + token.content.size()}, token.id};
    }
    return std::nullopt;
  }

 private:
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};
};

class BpeTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(bpe::TokenizerFile file, uint32_t hash) {
    ASSIGN_OR_RETURN(auto merges, bpe::Merges::make(std::move(file.rules)));
    auto made = std::unique_ptr<BpeTokenizer>(
        new BpeTokenizer(std::move(merges), bpe::WordCutter(std::move(file.splits))));
    bpe::SplitPattern::Scratch scratch;
    made->pieces_.resize(static_cast<size_t>(std::max(0, file.vocabulary)));
    for (AddedToken& token : file.added) {
      made->controls_.emplace(token.content, token.id);
      if (token.special) continue;
      made->pieces_[static_cast<size_t>(token.id)] = token.content;
      if (token.normalized) {
        ASSIGN_OR_RETURN(const auto form,
                         made->normalized(file.normalizers, {token.content, {}}, true, scratch));
        if (form.text.empty()) continue;
        token.content = form.text;
      }
      (token.normalized ? made->behind_normalizers_ : made->before_normalizers_).add(std::move(token));
    }
    made->spell_pieces(file.vocabulary);
    made->before_normalizers_.sort();
    made->behind_normalizers_.sort();
    made->normalizers_ = std::move(file.normalizers);
    made->shapers_ = std::move(file.shapers);
    made->facts_ = {.kind = "bpe",
                    .hash = hash,
                    .vocabulary = file.vocabulary,
                    .special = {file.begin, file.end, file.unknown, file.pad, file.mask}};
    return std::unique_ptr<Tokenizer>(std::move(made));
  }

  const TokenizerFacts& facts() const override { return facts_; }

  int32_t control_token(std::string_view content) const override {
    const auto found = controls_.find(content);
    return found == controls_.end() ? -1 : found->second;
  }

  std::vector<std::string> control_names() const override {
    std::vector<std::string> names;
    for (const auto& [content, control] : controls_) names.emplace_back(content);
    return names;
  }

  std::string bytes_of(int32_t id) const override {
    return id >= 0 && static_cast<size_t>(id) < pieces_.size() ? pieces_[static_cast<size_t>(id)] : "";
  }

  std::string spelling_of(int32_t id) const override {
    for (const auto& [content, control] : controls_)
      if (control == id) return content;
    return Tokenizer::spelling_of(id);
  }

  Result<void> encode(std::string_view text, std::vector<Token>& out) const override {
    SHARDRUN_CHECK(text.size() <= kMaximumTextBytes);
    Work work{out, {}, {}};
    return between(
        before_normalizers_, bpe::valid_utf8(text), true, work, [&](Form piece, bool first) -> Result<void> {
          ASSIGN_OR_RETURN(auto form, normalized(normalizers_, std::move(piece), first, work.patterns));
          return between(behind_normalizers_, std::move(form), first, work,
                         [&](Form rest, bool begins) { return encode_words(std::move(rest), begins, work); });
        });
  }

 private:
  struct Work {
    std::vector<Token>& out;
    bpe::SplitPattern::Scratch patterns;
    bpe::Merges::Scratch merges;
  };

  BpeTokenizer(bpe::Merges merges, bpe::WordCutter cutter)
      : merges_(std::move(merges)), cutter_(std::move(cutter)) {}

  // Fills in what the tokens of the merges' vocabulary stand for.
  void spell_pieces(int32_t vocabulary) {
    const bpe::MergeRules& rules = merges_.rules();
    for (const auto& [piece, id] : rules.vocabulary) {
      const bool special = controls_.contains(piece) || id == rules.unknown;
      if (id < vocabulary && !special)
        pieces_[static_cast<size_t>(id)] = rules.bytes ? piece : with_spaces(piece);
    }
    for (size_t byte = 0; byte < rules.byte_pieces.size(); ++byte) {
      const int32_t id = rules.byte_pieces[byte];
      if (!rules.bytes && id >= 0 && id < vocabulary)
        pieces_[static_cast<size_t>(id)] = std::string(1, static_cast<char>(byte));
    }
  }

  static Result<Form> normalized(const std::vector<bpe::Normalizer>& normalizers, Form form, bool first,
                                 bpe::SplitPattern::Scratch& scratch) {
    // Unicode's forms make a text eleven times as long at most. Normalizers that each double it would take all memory.
    const size_t most_bytes = 16 * form.text.size() + 1024;
    for (const bpe::Normalizer& normalizer : normalizers) {
      ASSIGN_OR_RETURN(form, bpe::normalized(normalizer, std::move(form), first, most_bytes, scratch));
    }
    return form;
  }

  static Form slice(const Form& form, Range range) {
    Form piece{form.text.substr(range.begin, range.end - range.begin), {}};
    for (size_t i = range.begin; i < range.end; ++i) piece.ends.push_back(form.original_end(i + 1));
    return piece;
  }

  // Emits the added tokens of `form`, and hands what stands between them to `encode`.
  template <typename Encode>
  Result<void> between(const AddedTokens& tokens, Form form, bool first, Work& work,
                       const Encode& encode) const {
    auto found = tokens.empty() ? std::nullopt : tokens.find(form.text, 0);
    if (!found) return encode(std::move(form), first);
    size_t at = 0;
    for (; found; found = tokens.find(form.text, at)) {
      if (at < found->range.begin)
        RETURN_IF_ERROR(encode(slice(form, {at, found->range.begin}), first && at == 0));
      at = found->range.end;
      work.out.push_back({found->id, form.original_end(at)});
    }
    return at < form.text.size() ? encode(slice(form, {at, form.text.size()}), false) : Result<void>();
  }

  Result<void> encode_words(Form form, bool first, Work& work) const {
    ASSIGN_OR_RETURN(form, normalized(shapers_, std::move(form), first, work.patterns));
    return cutter_.cut(form.text, work.patterns, [&](Range word) -> Result<void> {
      for (const auto& symbol :
           merges_.encode(std::string_view(form.text).substr(word.begin, word.end - word.begin), work.merges))
        work.out.push_back({symbol.id, form.original_end(word.begin + symbol.end)});
      return {};
    });
  }

  bpe::Merges merges_;
  bpe::WordCutter cutter_;
  std::vector<bpe::Normalizer> normalizers_, shapers_;
  AddedTokens before_normalizers_, behind_normalizers_;
  bpe::Vocabulary controls_;
  std::vector<std::string> pieces_;  // the bytes of each id
  TokenizerFacts facts_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_bpe_tokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const auto text, base::read_file(path));
  const std::string config_path =
      (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  const auto config = base::read_file(config_path);
  if (!config && config.error().code() != base::Code::kNotFound) return config.error();
  auto file = bpe::read_tokenizer_json(text, config ? *config : std::string());
  if (!file) return std::move(file).error().context(path);
  const uint32_t hash = record::bpe_hash(text, file->begin, file->end);
  auto made = BpeTokenizer::make(std::move(*file), hash);
  if (!made) return std::move(made).error().context(path);
  return made;
}

}  // namespace shardrun::data
