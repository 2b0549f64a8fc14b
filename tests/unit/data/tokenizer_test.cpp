#include "runtime/trainer/data/tokenizer.h"
#include "runtime/base/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "tests/support/token_files.h"
#include "tests/unit/data/tokens_of.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;

namespace {

const std::string kPeers = SOURCE_DIR "/tests/unit/data/peers/";

std::string error_of(const std::string& name) {
  const auto tokenizer = open_tokenizer(name);
  REQUIRE(!tokenizer);
  return tokenizer.error().to_string();
}

// Compares every line that tests/peers/tokenizer_ids.py kept, under the name that it gave the tokenizer.
void compare_with_peer(const Tokenizer& tokenizer, const std::string& name) {
  const auto text = base::read_file(kPeers + "ids.json");
  REQUIRE(text);
  const auto rows = base::parse_json(*text);
  REQUIRE(rows.size() >= 16);
  for (const auto& row : rows) {
    const auto line = row["text"].get<std::string>();
    CAPTURE(line);
    CHECK(ids_of(tokenizer, line) == row[name].get<std::vector<int32_t>>());
  }
}

// Makes a vocab.txt of its own in a folder, with what it says about itself.
std::string vocabulary(const Folder& folder, const std::string& pieces, const std::string& config = "") {
  if (!config.empty()) folder.file("tokenizer_config.json", config);
  return folder.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + pieces);
}

}  // namespace

TEST_CASE("byte tokenizer: a token is a byte and ends where it does") {
  const auto tokenizer = opened("byte");
  std::vector<Token> tokens;

  REQUIRE(tokenizer->encode("a\xff", tokens));

  REQUIRE(tokens.size() == 2);
  CHECK(tokens[0].id == 'a');
  CHECK(tokens[1].id == 255);
  CHECK(tokens[1].end == 2);
  CHECK(tokenizer->facts() == byte_tokenizer_facts());
}

TEST_CASE("sentencepiece: the ids are those of the Python package") {
  const auto tokenizer = opened(kPeers + "tiny.model");

  compare_with_peer(*tokenizer, "sentencepiece");

  CHECK(tokenizer->facts().kind == "sentencepiece");
  CHECK(tokenizer->facts().vocabulary == 384);
  CHECK(tokenizer->facts().special == SpecialTokens{1, 2, 0, -1, -1});
}

TEST_CASE("tokenizers: tokens give their text back where there is a way") {
  const std::string text = "to be \xf0\x9f\xa6\x8a or";
  for (const std::string& name : {std::string("byte"), kPeers + "tiny.model"}) {
    CAPTURE(name);
    const auto tokenizer = opened(name);
    std::vector<Token> tokens;
    REQUIRE(tokenizer->encode(text, tokens));
    std::string back;
    for (const Token& token : tokens) back += tokenizer->bytes_of(token.id);
    CHECK(back == (name == "byte" ? text : " " + text));
    CHECK(tokenizer->bytes_of(-1) == "");
    CHECK(tokenizer->bytes_of(1 << 20) == "");
  }
  CHECK(opened(kPeers + "tiny.model")->bytes_of(2) == "");  // </s>
}

TEST_CASE("wordpiece: the ids are those of transformers' BertTokenizer, uncased and cased") {
  const Folder folder;
  const auto text = base::read_file(kPeers + "vocab.txt");
  REQUIRE(text);
  folder.file("vocab.txt", *text);
  folder.file("tokenizer_config.json", R"({"do_lower_case": false})");
  const auto uncased = opened(kPeers + "vocab.txt"), cased = opened(folder / "vocab.txt");

  compare_with_peer(*uncased, "wordpiece");
  compare_with_peer(*cased, "wordpiece_cased");

  CHECK(uncased->facts().hash != cased->facts().hash);
}

TEST_CASE(
    "wordpiece: the longest piece that fits is taken first, and a word that does not work out is unknown") {
  const Folder folder;
  const auto tokenizer = opened(vocabulary(folder, "un\nunaff\n##able\n##aff\n##a\n"));

  CHECK(ids_of(*tokenizer, "unaffable") == std::vector<int32_t>{6, 7});
  CHECK(ids_of(*tokenizer, "unaffa una") == std::vector<int32_t>{6, 9, 5, 9});
  CHECK(ids_of(*tokenizer, "unaffab able") == std::vector<int32_t>{1, 1});
}

TEST_CASE("wordpiece: a word of 100 characters is cut up and one of 101 is unknown") {
  const Folder folder;
  const auto tokenizer = opened(vocabulary(folder, "a\n##a\né\n", R"({"strip_accents": false})"));

  CHECK(ids_of(*tokenizer, std::string(100, 'a')).size() == 100);
  CHECK(ids_of(*tokenizer, std::string(101, 'a')) == std::vector<int32_t>{1});
  CHECK(ids_of(*tokenizer, "É") == std::vector<int32_t>{7});
}

TEST_CASE("wordpiece: lines that end in CR LF are the same vocabulary") {
  const Folder folder;
  const std::string path =
      folder.file("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nhello\r\n");

  CHECK(ids_of(*opened(path), "Hello") == std::vector<int32_t>{5});
}

TEST_CASE("tokenizers: the text of a special token is letters") {
  const Folder folder;
  const auto wordpiece = opened(vocabulary(folder, "[\n]\nmask\n"));
  const auto sentencepiece = opened(kPeers + "tiny.model");

  CHECK(ids_of(*wordpiece, "[MASK]") == std::vector<int32_t>{5, 7, 6});
  for (const int32_t id : ids_of(*sentencepiece, "<s> </s> <unk>")) CHECK(id > 2);
}

TEST_CASE("tokenizers: bytes that are no UTF-8 are no reason to stop") {
  const Folder folder;
  const auto wordpiece = opened(vocabulary(folder, "a\n##b\n"));
  const auto sentencepiece = opened(kPeers + "tiny.model");

  CHECK(ids_of(*wordpiece,
               "a\xff"
               "b \xc3") == std::vector<int32_t>{5, 6});
  CHECK(ids_of(*sentencepiece,
               "a\xff"
               "b")
            .size() > 2);
}

TEST_CASE("tokenizers: tokens end where their text does, bytes of one character at its end") {
  const auto tokenizer = opened(kPeers + "tiny.model");
  const std::string text = "to \xf0\x9f\x99\x82!";
  std::vector<Token> tokens;

  REQUIRE(tokenizer->encode(text, tokens));

  std::vector<uint32_t> ends;
  for (const Token& token : tokens) ends.push_back(token.end);
  REQUIRE(ends.size() >= 6);
  CHECK(ends.back() == text.size());
  CHECK(std::count(ends.begin(), ends.end(), 7U) >= 4);
  CHECK(std::is_sorted(ends.begin(), ends.end()));
}

TEST_CASE("tokenizers: files that are none are refused by name") {
  const Folder folder;
  const std::string damaged = folder.file("damaged.model", "this is no model"),
                    other = folder.file("words.txt", "a");
  folder.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n");

  CHECK(error_of(damaged).find("damaged.model is no SentencePiece model") != std::string::npos);
  // Two pieces, <unk> and one that begins with a zero byte: found by fuzzing, the library throws.
  const std::string zero =
      folder.file("zero.model", std::string("\x0a\x09\x0a\x05<unk>\x18\x02\x0a\x04\x0a\x02\x00"
                                            "a",
                                            17));
  CHECK(error_of(zero).find("zero.model is no SentencePiece model") != std::string::npos);
  CHECK(error_of(folder / "vocab.txt").find("vocab.txt is no BERT vocabulary: it has no line [MASK]") !=
        std::string::npos);
  CHECK(error_of(other).find(
            "words.txt\"; use byte, or the path of a SentencePiece .model file, a tokenizer.json or a "
            "vocab.txt") != std::string::npos);
  CHECK(error_of(folder / "none.model").find("none.model") != std::string::npos);
  CHECK(error_of("myvocab.txt").find("there is no tokenizer") != std::string::npos);
}
