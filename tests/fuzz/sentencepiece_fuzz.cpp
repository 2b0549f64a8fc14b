// Runs libFuzzer over a SentencePiece model and a text: the model's bytes come first, and the text follows the last zero byte.
// A model that the library takes gives ids of its own vocabulary, whose ends lie in the text and do not go back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/data/tokenizer_kinds.h"

using namespace shardrun;

namespace {

struct File {
  File() { SHARDRUN_CHECK(::mkdtemp(folder.data()) != nullptr); }
  ~File() { std::filesystem::remove_all(folder); }
  std::string folder = "/dev/shm/sentencepiece_fuzz.XXXXXX";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const File kFile;
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.rfind('\0');
  const std::string text = zero == std::string::npos ? "a text of words" : all.substr(zero + 1);
  const std::string path = kFile.folder + "/tokenizer.model";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << all;
  const auto tokenizer = data::open_sentencepiece_tokenizer(path);
  if (!tokenizer) return 0;
  std::vector<data::Token> tokens;
  if (!(*tokenizer)->encode(text, tokens)) return 0;
  uint32_t end = 0;
  for (const data::Token& token : tokens) {
    SHARDRUN_CHECK(token.id >= 0 && token.id < static_cast<int32_t>((*tokenizer)->facts().vocabulary));
    SHARDRUN_CHECK(token.end >= end && token.end <= text.size());
    end = token.end;
  }
  return 0;
}
