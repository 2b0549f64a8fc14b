// Corpus: text files as one long row of byte tokens.
//
// The tokenizer is "byte": token = byte value, vocabulary 256, nothing is normalised. Files stand one behind
// the other in the order given, each followed by one separator token 0 (text files hold no NUL byte, so a
// model can learn that 0 ends a document). Files are mapped, not read: ranks of one node share the page cache
// and pages that nobody reads cost nothing.
//
// Thread rule: immutable after open; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::data {

using base::Result;

inline constexpr int kByteVocabulary = 256;
inline constexpr int32_t kDocumentSeparator = 0;

class Corpus {
 public:
  // Errors: kNotFound and kIo name the file; kInvalid for an empty file or an empty list. `key` is the job
  // spec's name of the list, for the message ("[data] files").
  static Result<Corpus> open(std::span<const std::string> paths, const std::string& key);
  Corpus(Corpus&& other) noexcept = default;
  Corpus& operator=(Corpus&& other) noexcept = delete;
  ~Corpus();

  int64_t tokens() const { return tokens_; }
  // Tokens [begin, begin + out.size()); must lie inside the corpus.
  void read(int64_t begin, std::span<int32_t> out) const;
  // Entropy in nats of the byte frequencies (separators not counted): what the best model that ignores
  // context would reach on this text.
  double unigram_entropy() const;

 private:
  struct Document {
    const unsigned char* bytes = nullptr;
    int64_t size = 0;
    int64_t begin = 0;  // token index of its first byte
  };
  Corpus() = default;
  Result<void> append(const std::string& path, const std::string& key);

  std::vector<Document> documents_;
  int64_t tokens_ = 0;
};

}  // namespace shardrun::data
