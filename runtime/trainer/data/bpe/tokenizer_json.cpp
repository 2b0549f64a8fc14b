#include "runtime/trainer/data/bpe/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/json.h"

namespace shardrun::data::bpe {
namespace {

using base::Code;
using base::Error;
using base::member;
using base::text_of;
using Json = nlohmann::json;

constexpr int32_t kMaximumId = (1 << 24) - 1;
// GPT-2's pattern, which the pre-tokenizer ByteLevel brings along.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error corrupt(std::string_view what) {
  return Error(Code::kCorrupt, std::string(what));
}
Error not_served(std::string what) {
  return Error(Code::kInvalid, std::move(what));
}

bool flag(const Json& object, const char* name, bool otherwise) {
  const Json& value = member(object, name);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// Calls `read` with a part of the pipeline, or with each part of a Sequence of `list`.
template <typename Read>
Result<void> each_of(const Json& part, const char* list, const Read& read) {
  if (part.is_null()) return {};
  if (text_of(member(part, "type")) != "Sequence") return read(part);
  for (const Json& one : member(part, list)) RETURN_IF_ERROR(each_of(one, list, read));
  return {};
}

Result<SplitPattern> read_pattern(const Json& pattern) {
  if (const Json& text = member(pattern, "String"); text.is_string())
    return SplitPattern::literal(text.get<std::string>());
  if (const Json& text = member(pattern, "Regex"); text.is_string())
    return SplitPattern::compile(text.get<std::string>());
  return corrupt("a pattern is neither {\"String\": …} nor {\"Regex\": …}");
}

Result<void> read_normalizer(const Json& part, std::vector<Normalizer>& into) {
  static const std::map<std::string, UnicodeForm> kForms{{"NFC", UnicodeForm::kNfc},
                                                         {"NFD", UnicodeForm::kNfd},
                                                         {"NFKC", UnicodeForm::kNfkc},
                                                         {"NFKD", UnicodeForm::kNfkd}};
  const std::string type = text_of(member(part, "type"));
  if (const auto form = kForms.find(type); form != kForms.end()) {
    into.emplace_back(form->second);
  } else if (type == "Prepend") {
    into.emplace_back(Prepend{text_of(member(part, "prepend"))});
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(auto pattern, read_pattern(member(part, "pattern")));
    into.emplace_back(Replace{std::move(pattern), text_of(member(part, "content"))});
  } else {
    return not_served(fmt::format("the normalizer {:?} is not served here", type));
  }
  return {};
}

Result<Behaviour> read_behaviour(const Json& part) {
  static const std::map<std::string, Behaviour> kBehaviours{
      {"Isolated", Behaviour::kIsolated},
      {"Removed", Behaviour::kRemoved},
      {"MergedWithPrevious", Behaviour::kMergedWithPrevious},
      {"MergedWithNext", Behaviour::kMergedWithNext},
      {"Contiguous", Behaviour::kContiguous}};
  const std::string name = text_of(member(part, "behavior"));
  const auto found = kBehaviours.find(name);
  if (found == kBehaviours.end()) return corrupt(fmt::format("there is no behavior {:?}", name));
  return found->second;
}

// Reads the pre-tokenizers in turn.
class PreTokenizers {
 public:
  explicit PreTokenizers(TokenizerFile& file) : file_(file) {}

  Result<void> read(const Json& part) {
    const std::string type = text_of(member(part, "type"));
    if (type == "ByteLevel") return byte_level(part);
    if (type == "Metaspace") return metaspace(part);
    if (type == "Split") {
      ASSIGN_OR_RETURN(auto pattern, read_pattern(member(part, "pattern")));
      ASSIGN_OR_RETURN(const auto behaviour, read_behaviour(part));
      file_.splits.push_back({std::move(pattern), behaviour, flag(part, "invert", false)});
      return {};
    }
    if (type == "Digits")
      return split(R"(\p{N})",
                   flag(part, "individual_digits", false) ? Behaviour::kIsolated : Behaviour::kContiguous);
    if (type == "Punctuation") {
      ASSIGN_OR_RETURN(const auto behaviour,
                       member(part, "behavior").is_null() ? Behaviour::kIsolated : read_behaviour(part));
      return split(R"([!-/:-@\[-`{-~\p{P}])", behaviour);
    }
    if (type == "WhitespaceSplit") return split(R"(\s)", Behaviour::kRemoved);
    return not_served(fmt::format("the pre-tokenizer {:?} is not served here", type));
  }

 private:
  Result<void> split(std::string_view expression, Behaviour behaviour) {
    ASSIGN_OR_RETURN(auto pattern, SplitPattern::compile(expression));
    file_.splits.push_back({std::move(pattern), behaviour, false});
    return {};
  }

  // A prefix put before every piece of an earlier split would have to be a part of that split.
  Result<void> check_first(std::string_view type) {
    if (file_.splits.empty() && file_.shapers.empty()) return {};
    return not_served(
        fmt::format("the pre-tokenizer {} puts something before pieces that another has cut, which is not "
                    "served here",
                    type));
  }

  Result<void> byte_level(const Json& part) {
    file_.rules.bytes = true;
    if (flag(part, "add_prefix_space", true)) {
      RETURN_IF_ERROR(check_first("ByteLevel"));
      file_.shapers.emplace_back(Prepend{" ", true});
    }
    if (flag(part, "use_regex", true)) return split(kByteLevelPattern, Behaviour::kIsolated);
    return {};
  }

  Result<void> metaspace(const Json& part) {
    RETURN_IF_ERROR(check_first("Metaspace"));
    const std::string mark = text_of(member(part, "replacement"));
    const bool older = flag(part, "add_prefix_space", true);
    const Json& given = member(part, "prepend_scheme");
    const std::string scheme = given.is_string() ? given.get<std::string>() : older ? "always" : "never";
    if (mark.empty() || (scheme != "always" && scheme != "never" && scheme != "first"))
      return corrupt("the pre-tokenizer Metaspace has no replacement, or an unknown prepend_scheme");
    ASSIGN_OR_RETURN(auto space, SplitPattern::literal(" "));
    file_.shapers.emplace_back(Replace{std::move(space), mark});
    if (scheme != "never") file_.shapers.emplace_back(Prepend{mark, true, scheme == "first"});
    if (!flag(part, "split", true)) return {};
    ASSIGN_OR_RETURN(auto pattern, SplitPattern::literal(mark));
    file_.splits.push_back({std::move(pattern), Behaviour::kMergedWithNext, false});
    return {};
  }

  TokenizerFile& file_;
};

// The characters that stand for bytes in a byte-level vocabulary: printable Latin-1 for itself, the rest from U+0100 on.
std::map<std::string, char, std::less<>> byte_characters() {
  std::map<std::string, char, std::less<>> characters;
  unsigned other = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const unsigned character = printable ? byte : other++;
    std::string spelled;
    if (character < 0x80) {
      spelled = static_cast<char>(character);
    } else {
      spelled = {static_cast<char>(0xC0U | (character >> 6U)),
                 static_cast<char>(0x80U | (character & 0x3FU))};
    }
    characters.emplace(std::move(spelled), static_cast<char>(byte));
  }
  return characters;
}

// Spells a piece in bytes; returns it as it is where it holds a character that stands for none, as added tokens may.
class ByteSpelling {
 public:
  std::string operator()(const std::string& piece) const {
    std::string bytes;
    for (size_t at = 0; at < piece.size();) {
      const size_t size = static_cast<unsigned char>(piece[at]) < 0x80 ? 1 : 2;
      const auto found = characters_.find(std::string_view(piece).substr(at, size));
      if (found == characters_.end()) return piece;
      bytes += found->second;
      at += size;
    }
    return bytes;
  }

 private:
  std::map<std::string, char, std::less<>> characters_ = byte_characters();
};

Result<int32_t> id_of(const Json& value) {
  if (!value.is_number_integer() || value < 0 || value > kMaximumId)
    return corrupt(fmt::format("a token's id is not a number from 0 to {}", kMaximumId));
  return value.get<int32_t>();
}

template <typename Spell>
Result<void> read_merges(const Json& model, const Spell& spell, MergeRules& rules) {
  const Json& merges = member(model, "merges");
  if (!merges.is_array()) return corrupt("the model has no list \"merges\"");
  rules.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      rules.merges.emplace_back(spell(merge[0].get<std::string>()), spell(merge[1].get<std::string>()));
      continue;
    }
    const std::string line = text_of(merge);
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      return corrupt(fmt::format("{} is no merge of two pieces", base::json_text(merge)));
    rules.merges.emplace_back(spell(line.substr(0, space)), spell(line.substr(space + 1)));
  }
  return {};
}

Result<void> read_model(const Json& model, TokenizerFile& file) {
  const std::string type = text_of(member(model, "type"));
  if (type == "WordPiece") return not_served("its model is WordPiece; name the vocab.txt beside it");
  if (type == "Unigram")
    return not_served("its model is Unigram; name the SentencePiece .model file beside it");
  if (type != "BPE" && !(type.empty() && member(model, "merges").is_array()))
    return not_served(fmt::format("its model {:?} is not served here", type));
  if (const Json& dropout = member(model, "dropout"); dropout.is_number() && dropout != 0.0)
    return not_served("its merges have a dropout, which would make every run another");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text_of(member(model, affix)).empty())
      return not_served(fmt::format("its {} is not served here", affix));

  MergeRules& rules = file.rules;
  const ByteSpelling in_bytes;
  const auto spell = [&](const std::string& piece) { return rules.bytes ? in_bytes(piece) : piece; };
  const Json& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) return corrupt("the model has no \"vocab\"");
  rules.vocabulary.reserve(vocabulary.size());
  for (const auto& [piece, value] : vocabulary.items()) {
    ASSIGN_OR_RETURN(const int32_t id, id_of(value));
    rules.vocabulary.emplace(spell(piece), id);
    file.vocabulary = std::max(file.vocabulary, id + 1);
  }
  RETURN_IF_ERROR(read_merges(model, spell, rules));
  rules.whole_words = flag(model, "ignore_merges", false);
  rules.fuse_unknown = flag(model, "fuse_unk", false);
  const auto id_in = [&](const std::string& piece) {
    const Json& value = piece.empty() ? Json() : member(vocabulary, piece.c_str());
    return value.is_number_integer() ? value.get<int32_t>() : -1;
  };
  file.unknown = rules.unknown = id_in(text_of(member(model, "unk_token")));
  const bool falls_back = flag(model, "byte_fallback", false);
  for (size_t byte = 0; byte < 256; ++byte)
    rules.byte_pieces[byte] = falls_back ? id_in(fmt::format("<0x{:02X}>", byte)) : -1;
  return {};
}

Result<void> read_added(const Json& added, TokenizerFile& file) {
  if (added.is_null()) return {};
  if (!added.is_array()) return corrupt("\"added_tokens\" is not a list");
  for (const Json& one : added) {
    ASSIGN_OR_RETURN(const int32_t id, id_of(member(one, "id")));
    AddedToken token{text_of(member(one, "content")), id, flag(one, "special", false),
                     flag(one, "normalized", false)};
    if (token.content.empty()) return corrupt("an added token has no content");
    for (const char* how : {"single_word", "lstrip", "rstrip"})
      if (!token.special && flag(one, how, false))
        return not_served(
            fmt::format("the added token {:?} has {}, which is not served here", token.content, how));
    file.vocabulary = std::max(file.vocabulary, id + 1);
    file.added.push_back(std::move(token));
  }
  return {};
}

int32_t added_id(const TokenizerFile& file, std::string_view content) {
  for (const AddedToken& token : file.added)
    if (token.content == content) return token.id;
  const auto found = file.rules.vocabulary.find(content);
  return content.empty() || found == file.rules.vocabulary.end() ? -1 : found->second;
}

// Reads which tokens the post-processor puts around one text.
Result<void> read_post_processor(const Json& part, TokenizerFile& file) {
  const std::string type = text_of(member(part, "type"));
  if (type == "ByteLevel") return {};
  if (type == "RobertaProcessing") {
    const auto of = [&](const char* name) {
      const Json& pair = member(part, name);
      return pair.is_array() && !pair.empty() ? added_id(file, text_of(pair.front())) : -1;
    };
    file.begin = of("cls");
    file.end = of("sep");
    if (file.begin < 0 || file.end < 0) return corrupt("its post-processor names a token that it has not");
    return {};
  }
  if (type != "TemplateProcessing")
    return not_served(fmt::format("the post-processor {:?} is not served here", type));
  bool behind = false;
  for (const Json& piece : member(part, "single")) {
    if (!member(piece, "Sequence").is_null()) {
      behind = true;
      continue;
    }
    int32_t& place = behind ? file.end : file.begin;
    if (place >= 0) return not_served("its post-processor puts several tokens on one side of a text");
    place = added_id(file, text_of(member(member(piece, "SpecialToken"), "id")));
    if (place < 0) return corrupt("its post-processor names a token that it has not");
  }
  return {};
}

// Returns the id of a token that the configuration names, -1 where it names none.
int32_t configured(const TokenizerFile& file, const Json& config, const char* name) {
  const Json& value = member(config, name);
  return added_id(file, text_of(value.is_object() ? member(value, "content") : value));
}

bool is_roberta(const Json& root) {
  return text_of(member(member(root, "post_processor"), "type")) == "RobertaProcessing";
}

}  // namespace

Result<TokenizerFile> read_tokenizer_json(std::string_view tokenizer, std::string_view config) {
  const Json root = base::parse_json(tokenizer);
  if (root.is_discarded() || !member(root, "model").is_object())
    return corrupt("is no tokenizer.json: it has no object \"model\"");
  const Json configuration = config.empty() ? Json::object() : base::parse_json(config);
  if (!configuration.is_object()) return corrupt("the tokenizer_config.json beside it is not a JSON object");
  TokenizerFile file;
  RETURN_IF_ERROR(each_of(member(root, "normalizer"), "normalizers",
                          [&](const Json& part) { return read_normalizer(part, file.normalizers); }));
  PreTokenizers pre_tokenizers(file);
  RETURN_IF_ERROR(each_of(member(root, "pre_tokenizer"), "pretokenizers",
                          [&](const Json& part) { return pre_tokenizers.read(part); }));
  RETURN_IF_ERROR(read_model(member(root, "model"), file));
  RETURN_IF_ERROR(read_added(member(root, "added_tokens"), file));
  RETURN_IF_ERROR(each_of(member(root, "post_processor"), "processors",
                          [&](const Json& part) { return read_post_processor(part, file); }));
  if (file.begin < 0 && flag(configuration, "add_bos_token", false))
    file.begin = configured(file, configuration, "bos_token");
  if (file.end < 0) file.end = configured(file, configuration, "eos_token");
  file.pad = configured(file, configuration, "pad_token");
  if (is_roberta(root)) {  // whose configuration often leaves out these names
    if (file.pad < 0) file.pad = added_id(file, "<pad>");
    file.mask = configured(file, configuration, "mask_token");
    if (file.mask < 0) file.mask = added_id(file, "<mask>");
  }
  if (file.end < 0) {
    return not_served(
        "no token ends a document: its post-processor places none; put the tokenizer_config.json that has "
        "eos_token beside it");
  }
  return file;
}

}  // namespace shardrun::data::bpe
