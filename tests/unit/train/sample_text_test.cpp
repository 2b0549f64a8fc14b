#include "runtime/trainer/train/sample_text.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/folder.h"

using namespace shardrun;

TEST_CASE("sample text: a sequence is its text, and where not all of it is predicted, what is") {
  const auto bytes = train::find_tokenizer(data::byte_tokenizer_facts(), "");
  REQUIRE(bytes);
  const std::string text = "a *b*\n\x1b[31mc\xc3\xa9";
  std::vector<int32_t> tokens(text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  tokens.resize(tokens.size() + 4, 'x');  // another sequence
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  targets.push_back('x');
  const model::Batch all{.tokens = tokens, .targets = targets};
  CHECK(train::sample_text(*bytes, all, static_cast<int64_t>(text.size())) ==
        "14 tokens, of which 14 are predicted:\n\n    a *b*\n    \\x1b[31mc\xc3\xa9\n");

  const std::vector<int32_t> lengths = {6, 4};
  for (const size_t answer : {0, 1, 4, 5}) targets[answer] = -1;
  CHECK(train::sample_text(*bytes, {.tokens = tokens, .targets = targets, .lengths = lengths}, 14) ==
        "6 tokens, of which 2 are predicted:\n\n    a *b*\n\nThe predicted ones:\n\n    b*\n");
}

TEST_CASE("sample text: only the tokenizer that made the tokens is found") {
  const tests::Folder folder;
  const std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n";
  const std::string path = folder.file("vocab.txt", vocabulary);
  const auto made = data::open_tokenizer(path);
  REQUIRE(made);
  for (const std::string& weights : {path, folder / ""})
    CHECK(train::find_tokenizer((*made)->facts(), weights));
  CHECK_FALSE(train::find_tokenizer((*made)->facts(), ""));
  folder.file("vocab.txt", vocabulary + "c\n");
  CHECK_FALSE(train::find_tokenizer((*made)->facts(), path));
}
