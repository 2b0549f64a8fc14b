#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/trainer/data/tokenizer.h"
#include "tests/support/token_files.h"
#include "tests/unit/data/tokens_of.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;

namespace {

const std::string kBpePeers = SOURCE_DIR "/tests/unit/data/peers/bpe/";

std::vector<uint32_t> ends_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<uint32_t> ends;
  for (const Token& token : tokens_of(tokenizer, text)) ends.push_back(token.end);
  return ends;
}

// A tokenizer.json over a, b, c, ab, abc and the mark of a space, with more members in front of its model.
std::string small(const std::string& members, const std::string& model = "") {
  return "{" + members + R"("added_tokens": [{"id": 9, "content": "<end>", "special": true}],
    "model": {"type": "BPE", )" +
         model + R"("vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "Ġ": 5},
    "merges": ["a b", "ab c"]}})";
}

std::string written(const Folder& folder, const std::string& tokenizer, const std::string& end = "<end>") {
  folder.file("tokenizer_config.json", R"({"eos_token": {"content": ")" + end + R"("}})");
  return folder.file("tokenizer.json", tokenizer);
}

std::string refusal(const std::string& tokenizer) {
  const Folder folder;
  const auto opened = open_tokenizer(written(folder, tokenizer));
  REQUIRE(!opened);
  return opened.error().to_string();
}

}  // namespace

TEST_CASE("tokenizer.json: the ids are those of the tokenizers package, in the shape of each family") {
  const auto text = base::read_file(kBpePeers + "ids.json");
  REQUIRE(text);
  const auto rows = base::parse_json(*text);
  REQUIRE(rows.size() >= 22);
  for (const std::string family : {"gpt2", "prefix_space", "llama3", "smollm2", "qwen", "nfkc", "deepseek",
                                   "llama2", "mistral", "gemma"}) {
    CAPTURE(family);
    const auto tokenizer = opened(kBpePeers + family + "/tokenizer.json");
    for (const auto& row : rows) {
      const auto line = row["text"].get<std::string>();
      CAPTURE(line);
      CHECK(ids_of(*tokenizer, line) == row[family].get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE(
    "tokenizer.json: the first merge in rank goes first, the leftmost of equals, in short and in long "
    "words") {
  const Folder folder;
  const auto tokenizer = opened(written(folder, small("")));

  CHECK(ids_of(*tokenizer, "abcab") == std::vector<int32_t>{4, 3});
  CHECK(ids_of(*tokenizer, "aabb") == std::vector<int32_t>{0, 3, 1});
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 100; ++i) {
    text += "abcaab";
    expected.insert(expected.end(), {4, 0, 3});
  }
  CHECK(ids_of(*tokenizer, text) == expected);
}

TEST_CASE("tokenizer.json: a character that the vocabulary lacks is its unknown token, or left out") {
  const Folder folder;
  const auto without = opened(written(folder, small("")));
  CHECK(ids_of(*without, "aéb") == std::vector<int32_t>{3});

  const auto with = opened(written(folder, small("", R"("unk_token": "c", )")));
  CHECK(ids_of(*with, "aéxb") == std::vector<int32_t>{0, 2, 2, 1});

  const auto fused = opened(written(folder, small("", R"("unk_token": "c", "fuse_unk": true, )")));
  CHECK(ids_of(*fused, "aéxb") == std::vector<int32_t>{0, 2, 1});
}

TEST_CASE("tokenizer.json: a pattern that matches nothing is replaced between characters, not inside them") {
  const Folder folder;
  const auto tokenizer = opened(written(
      folder, small(R"("normalizer": {"type": "Replace", "pattern": {"Regex": "z*"}, "content": "a"}, )",
                    R"("unk_token": "c", )")));
  CHECK(ids_of(*tokenizer, "é€") == std::vector<int32_t>{0, 2, 0, 2, 0});
}

TEST_CASE("tokenizer.json: tokens end where their text does, whatever the normalizer put in its place") {
  const auto llama2 = opened(kBpePeers + "llama2/tokenizer.json");
  const std::string text = "to  be";
  const auto spaces = ends_of(*llama2, text);
  CHECK(spaces.back() == text.size());
  CHECK(std::is_sorted(spaces.begin(), spaces.end()));

  const auto qwen = opened(kBpePeers + "qwen/tokenizer.json");
  const std::string composes = "x e\u0301 y";
  const auto ends = ends_of(*qwen, composes);
  CHECK(ends.front() == 1);
  CHECK(std::count(ends.begin(), ends.end(), 5U) >= 1);
  CHECK(std::count(ends.begin(), ends.end(), 4U) == 0);
  CHECK(ends.back() == composes.size());
}

TEST_CASE("tokenizer.json: the text of a special token is letters, and only a template places the token") {
  const auto tokenizer = opened(kBpePeers + "llama3/tokenizer.json");
  const int32_t end = tokenizer->control_token("<|im_end|>");

  CHECK(end == tokenizer->facts().special.end);
  CHECK(end >= 400);
  CHECK(tokenizer->facts().vocabulary == end + 1);
  for (const int32_t id : ids_of(*tokenizer, "a<|im_end|>b")) CHECK(id != end);
  CHECK(tokenizer->control_token("no such token") == -1);
}

TEST_CASE("tokenizer.json: tokens give their text back, byte by byte, and special ones none") {
  const std::string text =
      "It's 3,141 \xf0\x9f\xa6\x8a\n  for (int i = 0;) \xd0\xaf \xe6\xbc\xa2\xe5\xad\x97\t.";
  for (const std::string family :
       {"gpt2", "llama3", "smollm2", "qwen", "deepseek", "llama2", "mistral", "gemma"}) {
    CAPTURE(family);
    const auto tokenizer = opened(kBpePeers + family + "/tokenizer.json");
    std::string back;
    for (const int32_t id : ids_of(*tokenizer, text)) back += tokenizer->bytes_of(id);
    const bool marks_begin = family == "llama2" || family == "mistral";
    CHECK(back == (marks_begin ? " " : "") + text);
    const SpecialTokens special = tokenizer->facts().special;
    for (const int32_t id : {special.begin, special.end, special.unknown, -1, 1 << 30})
      CHECK(tokenizer->bytes_of(id) == "");
  }
}

TEST_CASE("tokenizer.json: a document begins and ends with the tokens that the files name") {
  const auto llama3 = opened(kBpePeers + "llama3/tokenizer.json"),
             gpt2 = opened(kBpePeers + "gpt2/tokenizer.json");

  CHECK(llama3->facts().special.begin == llama3->control_token("<|begin|>"));
  CHECK(gpt2->facts().special.begin == -1);
  CHECK(gpt2->facts().special.end == gpt2->control_token("<|im_end|>"));
  CHECK(gpt2->facts().kind == "bpe");
  CHECK(gpt2->facts().hash != llama3->facts().hash);
}

TEST_CASE("tokenizer.json: bytes that are no UTF-8 are U+FFFD, one for each of Python's") {
  const auto tokenizer = opened(kBpePeers + "gpt2/tokenizer.json");

  CHECK(ids_of(*tokenizer, "a\xff\xe4\xb8z\xf0") == ids_of(*tokenizer, "a\uFFFD\uFFFDz\uFFFD"));
  CHECK(ends_of(*tokenizer, "\xe4\xb8").back() == 2);
}

TEST_CASE("tokenizer.json: a RoBERTa's has a mask, and is the only one that has") {
  const Folder folder;
  const std::string tokens = R"({"added_tokens": [{"id": 6, "content": "<s>", "special": true},
      {"id": 7, "content": "<pad>", "special": true}, {"id": 8, "content": "</s>", "special": true},
      {"id": 9, "content": "<mask>", "special": true, "lstrip": true}],)";
  const std::string model =
      R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 3}, "merges": ["a b"]}})";
  const auto roberta = opened(folder.file(
      "tokenizer.json",
      tokens + R"("post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 8], "cls": ["<s>", 6]},)" +
          model));
  CHECK(roberta->facts().special == SpecialTokens{.begin = 6, .end = 8, .pad = 7, .mask = 9});
  CHECK(ids_of(*roberta, "abb") == std::vector<int32_t>{3, 1});

  const auto llama = opened(written(folder, tokens + model, "</s>"));
  CHECK(llama->facts().special == SpecialTokens{.end = 8});
}

TEST_CASE("tokenizer.json: what is not served is refused by name") {
  CHECK(refusal(small(R"("normalizer": {"type": "Lowercase"}, )"))
            .find("the normalizer \"Lowercase\" is not served here") != std::string::npos);
  CHECK(
      refusal(
          small(R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}, )"))
          .find("\"Nmt\"") != std::string::npos);
  CHECK(refusal(small(R"("pre_tokenizer": {"type": "UnicodeScripts"}, )")).find("\"UnicodeScripts\"") !=
        std::string::npos);
  CHECK(refusal(small(R"("post_processor": {"type": "BertProcessing"}, )")).find("\"BertProcessing\"") !=
        std::string::npos);
  CHECK(refusal(small("", R"("dropout": 0.1, )")).find("dropout") != std::string::npos);
  CHECK(refusal(small("", R"("end_of_word_suffix": "</w>", )")).find("end_of_word_suffix") !=
        std::string::npos);
  CHECK(refusal(R"({"model": {"type": "WordPiece"}})").find("name the vocab.txt beside it") !=
        std::string::npos);
  CHECK(refusal(R"({"model": {"type": "Unigram"}})").find("name the SentencePiece .model") !=
        std::string::npos);
  CHECK(refusal(small(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": true}]}, )"))
            .find("ByteLevel puts something before pieces that another has cut") != std::string::npos);
}

TEST_CASE("tokenizer.json: patterns that would mean something else are refused, and broken ones too") {
  const auto with = [](const std::string& pattern) {
    return small(R"("pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" +
                 pattern + R"("}}, )");
  };
  CHECK(refusal(with("[a[bc]]")).find("a set inside a set") != std::string::npos);
  CHECK(refusal(with("[a-z&&[^b]]")).find("a set inside a set") != std::string::npos);
  CHECK(refusal(with(R"(\\h+)")).find("has \\h, which is not read here") != std::string::npos);
  CHECK(refusal(with(R"([\\S])")).find("has \\S inside a set") != std::string::npos);
  CHECK(refusal(with("(a")).find("is no regular expression") != std::string::npos);
  CHECK(refusal(with(R"(a\\)")).find("ends in a backslash") != std::string::npos);
}

TEST_CASE("tokenizer.json: a pattern that never ends gives up with a word") {
  const Folder folder;
  const auto tokenizer = opened(written(
      folder,
      small(
          R"("pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(?:a|a?)+$"}}, )")));
  std::vector<Token> tokens;

  const auto done = tokenizer->encode(std::string(200, 'a') + "b", tokens);

  REQUIRE(!done);
  CHECK(done.error().to_string().find("the tokenizer's pattern gives up on this text") != std::string::npos);
}

TEST_CASE("tokenizer.json: normalizers that make a text of any length give up with a word") {
  std::string doubles;
  for (int i = 0; i < 40; ++i)
    doubles += std::string(i == 0 ? "" : ", ") +
               R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  const std::string members = R"("normalizer": {"type": "Sequence", "normalizers": [)" + doubles + "]}, ";
  const Folder folder;
  const auto tokenizer = opened(written(folder, small(members)));
  std::vector<Token> tokens;

  const auto done = tokenizer->encode("banana", tokens);

  REQUIRE(!done);
  CHECK(done.error().to_string().find("normalizer makes more than 1120 bytes of a text") !=
        std::string::npos);
  CHECK(tokens_of(*tokenizer, "bcb").size() == 3);  // nothing of it grows
  // A token that the normalizers change is looked for as they leave it, which is found out at once.
  std::string with_token = small(members);
  with_token.insert(with_token.find(R"({"id": 9)"), R"({"id": 10, "content": "a", "normalized": true}, )");
  CHECK(refusal(with_token).find("normalizer makes more than") != std::string::npos);
}

TEST_CASE("tokenizer.json: damaged files are refused by name") {
  const auto damaged = [](const std::string& merges) {
    return R"({"added_tokens": [{"id": 9, "content": "<end>"}], "model": {"type": "BPE", "vocab": {"a": 1}, "merges": )" +
           merges + "}}";
  };
  CHECK(refusal("{").find("tokenizer.json: is no tokenizer.json") != std::string::npos);
  CHECK(refusal(damaged(std::string(300'000, '['))).find("is no tokenizer.json") != std::string::npos);
  CHECK(refusal("[1]").find("is no tokenizer.json") != std::string::npos);
  CHECK(
      refusal(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})").find("id is not a number") !=
      std::string::npos);
  CHECK(refusal(damaged(R"(["a x"])")).find("vocabulary lacks the second") != std::string::npos);
  CHECK(refusal(damaged(R"(["a"])")).find("is no merge of two pieces") != std::string::npos);
  const Folder folder;
  const auto without_end = open_tokenizer(written(folder, small(""), "<other>"));
  REQUIRE(!without_end);
  CHECK(without_end.error().to_string().find("no token ends a document") != std::string::npos);
}
