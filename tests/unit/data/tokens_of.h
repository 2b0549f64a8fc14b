// What a tokenizer of a file makes of a text; whatever fails fails the test.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::tests {

inline std::unique_ptr<data::Tokenizer> opened(const std::string& name) {
  auto tokenizer = data::open_tokenizer(name);
  if (!tokenizer) FAIL(tokenizer.error().to_string());
  return std::move(tokenizer).value();
}

inline std::vector<data::Token> tokens_of(const data::Tokenizer& tokenizer, const std::string& text) {
  std::vector<data::Token> tokens;
  REQUIRE(tokenizer.encode(text, tokens));
  return tokens;
}

inline std::vector<int32_t> ids_of(const data::Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  for (const data::Token& token : tokens_of(tokenizer, text)) ids.push_back(token.id);
  return ids;
}

}  // namespace shardrun::tests
