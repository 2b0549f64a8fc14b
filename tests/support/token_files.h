// Token files for tests, and documents of a language from which a BERT of two layers learns something.
//
// Thread rule: thread-compatible.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/data/token_file.h"
#include "tests/support/folder.h"

namespace shardrun::tests {

// Returns the facts of a tokenizer like BERT's over `vocabulary` ids, the first five of which are special.
inline data::TokenizerFacts bert_facts(int32_t vocabulary) {
  return {.kind = "wordpiece", .hash = 7, .vocabulary = vocabulary, .special = {1, 2, 3, 0, 4}};
}

// Writes a token file in the place of one that an earlier call wrote, if any, and returns its path.
inline std::string token_file(const Folder& folder, const std::string& name,
                              const data::TokenizerFacts& facts,
                              const std::vector<std::vector<int32_t>>& documents) {
  const std::string path = folder / name;
  std::filesystem::remove(path);
  auto writer = data::TokenFileWriter::create(path, facts);
  REQUIRE(writer);
  for (const auto& document : documents) REQUIRE(writer->append(document));
  REQUIRE(writer->finish());
  return path;
}

// Returns documents of 9 to 208 words among the ids from 5 to 5 + `words`, a few of which are frequent. Most words
// follow from the one before and from the document's subject.
inline std::vector<std::vector<int32_t>> worded_documents(int count, uint64_t chapter, int32_t words) {
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = base::random_bits(chapter, static_cast<uint64_t>(i));
    const auto subject = static_cast<int32_t>(key % 5);
    std::vector<int32_t> document = {5};
    for (uint64_t at = 1; at < 9 + key / 5 % 200; ++at) {
      const uint64_t bits = base::random_bits(key, at);
      const auto any = static_cast<int32_t>((bits >> 8) % static_cast<uint64_t>(words));
      const int32_t next = (document.back() - 5) / 2 + subject;
      document.push_back(5 + (bits % 8 == 0 ? any : next % words));
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

}  // namespace shardrun::tests
