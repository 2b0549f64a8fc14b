#include <utf8proc.h>

#include <array>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/tokenizer_kinds.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

constexpr size_t kMaximumWordCharacters = 100;

struct Settings {
  bool lower_case = true, strip_accents = true, split_chinese = true;
};

bool is_chinese(int32_t character) {
  constexpr std::array<std::pair<int32_t, int32_t>, 8> kRanges{{{0x4E00, 0x9FFF},
                                                                {0x3400, 0x4DBF},
                                                                {0x20000, 0x2A6DF},
                                                                {0x2A700, 0x2B73F},
                                                                {0x2B740, 0x2B81F},
                                                                {0x2B820, 0x2CEAF},
                                                                {0xF900, 0xFAFF},
                                                                {0x2F800, 0x2FA1F}}};
  for (const auto& range : kRanges)
    if (character >= range.first && character <= range.second) return true;
  return false;
}

bool is_whitespace(int32_t character, utf8proc_category_t category) {
  return character == '\t' || character == '\n' || character == '\r' || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_dropped(int32_t character, utf8proc_category_t category) {
  return character == 0xFFFD || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CS || category == UTF8PROC_CATEGORY_CO;
}

// Returns whether the character is punctuation: in Unicode, or any printable ASCII that is neither letter nor
// digit.
bool is_punctuation(int32_t character) {
  if (character < 128) {
    return (character >= 33 && character <= 47) || (character >= 58 && character <= 64) ||
           (character >= 91 && character <= 96) || (character >= 123 && character <= 126);
  }
  const utf8proc_category_t category = utf8proc_category(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using PieceIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// The word that is being read.
struct Word {
  std::string text;
  size_t characters = 0;
  uint32_t end = 0;  // its end in the text that is tokenized

  void add(int32_t character) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto size = utf8proc_encode_char(character, bytes.data());
    text.append(reinterpret_cast<const char*>(bytes.data()), size);
    ++characters;
  }
};

class WordPieceTokenizer final : public Tokenizer {
 public:
  Result<void> load(const std::string& path, const std::string& vocabulary, const Settings& settings) {
    settings_ = settings;
    int32_t id = 0;
    for (std::string_view left = vocabulary; !left.empty(); ++id) {
      std::string_view piece = base::take_line(left);
      if (piece.ends_with('\r')) piece.remove_suffix(1);
      const bool continues = piece.size() > 2 && piece.starts_with("##");
      (continues ? inner_ : first_).insert_or_assign(std::string(continues ? piece.substr(2) : piece), id);
    }
    if (id > static_cast<int32_t>(record::kMaximumVocabulary))
      return Error(Code::kCorrupt, fmt::format("{} has {} lines, too many for a vocabulary", path, id));
    facts_ = {.kind = "wordpiece",
              .hash = record::wordpiece_hash(vocabulary, settings.lower_case, settings.strip_accents,
                                             settings.split_chinese),
              .vocabulary = id};
    SpecialTokens& special = facts_.special;
    for (const auto& [name, place] : {std::pair("[CLS]", &special.begin), std::pair("[SEP]", &special.end),
                                      std::pair("[UNK]", &special.unknown), std::pair("[PAD]", &special.pad),
                                      std::pair("[MASK]", &special.mask)}) {
      const auto found = first_.find(std::string_view(name));
      if (found == first_.end())
        return Error(Code::kCorrupt, fmt::format("{} is no BERT vocabulary: it has no line {}", path, name));
      *place = found->second;
    }
    return {};
  }

  const TokenizerFacts& facts() const override { return facts_; }

  Result<void> encode(std::string_view text, std::vector<Token>& out) const override {
    SHARDRUN_CHECK(text.size() <= kMaximumTextBytes);
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    Word word;
    for (size_t at = 0; at < text.size();) {
      int32_t character = bytes[at];
      if (character >= 0x80) {
        const auto size =
            utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
        at += size > 0 ? static_cast<size_t>(size) : 1;
        if (size <= 0) continue;  // U+FFFD, which is dropped
      } else {
        ++at;
      }
      const utf8proc_category_t category = utf8proc_category(character);
      if (is_whitespace(character, category)) {
        finish(word, out);
      } else if (!is_dropped(character, category)) {
        const bool alone = settings_.split_chinese && is_chinese(character);
        if (alone) finish(word, out);
        add_normalised(character, static_cast<uint32_t>(at), word, out);
        if (alone) finish(word, out);
      }
    }
    finish(word, out);
    return {};
  }

 private:
  void add_normalised(int32_t character, uint32_t end, Word& word, std::vector<Token>& out) const {
    std::array<int32_t, 16> parts{character};
    utf8proc_ssize_t count = 1;
    if (settings_.strip_accents && character >= 0x80) {
      int boundary = 0;
      count = utf8proc_decompose_char(character, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
      SHARDRUN_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    }
    for (int32_t part : std::span(parts).first(count)) {
      if (settings_.strip_accents && utf8proc_category(part) == UTF8PROC_CATEGORY_MN) continue;
      if (settings_.lower_case) part = utf8proc_tolower(part);
      const bool alone = is_punctuation(part);
      if (alone) finish(word, out);
      word.add(part);
      word.end = end;
      if (alone) finish(word, out);
    }
  }

  // Appends the pieces of the word, and begins another.
  void finish(Word& word, std::vector<Token>& out) const {
    const size_t before = out.size();
    bool known = word.characters <= kMaximumWordCharacters;
    for (std::string_view rest = word.text; known && !rest.empty();) {
      const PieceIds& pieces = rest.size() == word.text.size() ? first_ : inner_;
      size_t size = rest.size();
      auto found = pieces.find(rest);
      while (found == pieces.end() && size > 1) {
        --size;
        if ((static_cast<unsigned char>(rest[size]) & 0xC0) != 0x80)
          found = pieces.find(rest.substr(0, size));
      }
      known = found != pieces.end();
      if (!known) break;
      out.push_back({found->second, word.end});
      rest.remove_prefix(size);
    }
    if (!known) {
      out.resize(before);
      out.push_back({facts_.special.unknown, word.end});
    }
    word = Word{};
  }

  Settings settings_;
  PieceIds first_, inner_;  // pieces that begin a word, and those that continue one (without "##")
  TokenizerFacts facts_;
};

// Reads the tokenizer_config.json beside the vocabulary, where there is one.
Result<Settings> read_settings(const std::string& vocabulary_path) {
  const std::string path =
      (std::filesystem::path(vocabulary_path).parent_path() / "tokenizer_config.json").string();
  const auto text = base::read_file(path);
  if (!text && text.error().code() == Code::kNotFound) return Settings{};
  if (!text) return text.error();
  const auto object = base::parse_json(*text);
  if (!object.is_object()) return Error(Code::kCorrupt, fmt::format("{} is not a JSON object", path));
  const auto flag = [&](const char* name, bool otherwise) {
    const auto found = object.find(name);
    return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  };
  Settings settings;
  settings.lower_case = flag("do_lower_case", true);
  settings.strip_accents = flag("strip_accents", settings.lower_case);
  settings.split_chinese = flag("tokenize_chinese_chars", true);
  return settings;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_wordpiece_tokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const auto vocabulary, base::read_file(path));
  ASSIGN_OR_RETURN(const auto settings, read_settings(path));
  auto tokenizer = std::make_unique<WordPieceTokenizer>();
  RETURN_IF_ERROR(tokenizer->load(path, vocabulary, settings));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace shardrun::data
