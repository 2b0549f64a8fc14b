// Runs libFuzzer over tokenizer.json: the input is one, and the text that it encodes, which follows the last zero byte; and again
// as the pattern, or a part of the pipeline, of one that is otherwise well, so that what lies behind the grammar is reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/data/tokenizer_kinds.h"

using namespace shardrun;

namespace {

struct File {
  File() {
    SHARDRUN_CHECK(::mkdtemp(folder.data()) != nullptr);
    std::ofstream(folder + "/tokenizer_config.json") << R"({"eos_token": "<end>"})";
  }
  ~File() { std::filesystem::remove_all(folder); }
  std::string folder = "/dev/shm/bpe_fuzz.XXXXXX";
};

// Ids are of the vocabulary, and ends lie in the text and do not go back.
void encode(const std::string& tokenizer_json, const std::string& text) {
  static const File kFile;
  const std::string path = kFile.folder + "/tokenizer.json";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << tokenizer_json;
  const auto tokenizer = data::open_bpe_tokenizer(path);
  if (!tokenizer) return;
  std::vector<data::Token> tokens;
  if (!(*tokenizer)->encode(text, tokens)) return;
  uint32_t end = 0;
  for (const data::Token& token : tokens) {
    SHARDRUN_CHECK(token.id >= 0 && token.id < (*tokenizer)->facts().vocabulary);
    SHARDRUN_CHECK(token.end >= end && token.end <= text.size());
    end = token.end;
    (void)(*tokenizer)->bytes_of(token.id);
  }
}

nlohmann::json well() {
  nlohmann::json vocabulary = {{"ab", 256}, {"abc", 257}, {"▁", 258}};
  for (int letter = 0x20; letter < 0x7f; ++letter)
    vocabulary[std::string(1, static_cast<char>(letter))] = letter;
  return {
      {"added_tokens", {{{"id", 300}, {"content", "<end>"}, {"special", true}}}},
      {"model", {{"type", "BPE"}, {"unk_token", "?"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c"}}}}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.rfind('\0');
  const std::string text = zero == std::string::npos ? "a text of <end> abc" : all.substr(zero + 1);
  const std::string first = all.substr(0, zero);
  encode(first, text);

  nlohmann::json with_pattern = well();
  for (const char* behaviour : {"Isolated", "MergedWithNext"})
    with_pattern["pre_tokenizer"]["pretokenizers"].push_back(
        {{"type", "Split"}, {"behavior", behaviour}, {"pattern", {{"Regex", first}}}});
  with_pattern["pre_tokenizer"]["type"] = "Sequence";
  encode(base::json_text(with_pattern), text);

  const nlohmann::json part = base::parse_json(first);
  if (part.is_discarded()) return 0;
  for (const char* place : {"normalizer", "pre_tokenizer", "post_processor"}) {
    nlohmann::json with_part = well();
    with_part[place] = part;
    encode(base::json_text(with_part), text);
  }
  return 0;
}
