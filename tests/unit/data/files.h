// Files for the tests of this folder.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/data/token_file.h"

namespace shardrun::data {

// A folder of its own that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardrun-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }
  std::string missing(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A tokenizer like BERT's over `vocabulary` ids, the first five of which are special.
inline TokenizerFacts bert_facts(int32_t vocabulary) {
  return {.kind = "wordpiece", .hash = 7, .vocabulary = vocabulary, .special = {1, 2, 3, 0, 4}};
}

inline std::string token_file(const Folder& folder, const std::string& name, const TokenizerFacts& facts,
                              const std::vector<std::vector<int32_t>>& documents) {
  const std::string path = folder.missing(name);
  auto writer = TokenFileWriter::create(path, facts);
  REQUIRE(writer);
  for (const auto& document : documents) REQUIRE(writer->append(document));
  REQUIRE(writer->finish());
  return path;
}

}  // namespace shardrun::data
