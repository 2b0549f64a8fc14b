// Files for the tests of this folder.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/data/token_file.h"
#include "tests/support/folder.h"

namespace shardrun::data {

using tests::Folder;
// A tokenizer like BERT's over `vocabulary` ids, the first five of which are special.
inline TokenizerFacts bert_facts(int32_t vocabulary) {
  return {.kind = "wordpiece", .hash = 7, .vocabulary = vocabulary, .special = {1, 2, 3, 0, 4}};
}

inline std::string token_file(const Folder& folder, const std::string& name, const TokenizerFacts& facts,
                              const std::vector<std::vector<int32_t>>& documents) {
  const std::string path = folder / name;
  auto writer = TokenFileWriter::create(path, facts);
  REQUIRE(writer);
  for (const auto& document : documents) REQUIRE(writer->append(document));
  REQUIRE(writer->finish());
  return path;
}

}  // namespace shardrun::data
