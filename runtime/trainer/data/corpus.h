// Corpus: files as one long row of tokens. There are two kinds of files, told apart by how they begin.
//
// Plain text is read by the tokenizer "byte": token = byte value, vocabulary 256, nothing is normalised. Files
// stand one behind the other in the order given, each followed by one separator token 0 (text files hold no NUL
// byte, so a model can learn that 0 ends a document). Document boundaries are not reported: attention crosses them.
//
// Token files (runtime/trainer/data/token_file.h) are what `shardrun data` writes: documents stand one behind the other as
// they are, and readers learn where each begins and which tokens carry no loss.
//
// Files are mapped, not read: the ranks of one node share the page cache, and pages that nobody reads cost nothing.
// Thread rule: immutable after open; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/mapped_file.h"
#include "runtime/trainer/data/token_file.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {

using base::Result;

class Corpus {
 public:
  // Errors: kNotFound and kIo name the file; kInvalid for an empty file, an empty list, and files that do not
  // belong together; kCorrupt and kUnsupported for token files. `key` is the job spec's name of the list, for the
  // message ("[data] files").
  static Result<Corpus> open(std::span<const std::string> paths, const std::string& key);
  Corpus(Corpus&& other) noexcept = default;
  Corpus& operator=(Corpus&& other) noexcept = delete;

  int64_t tokens() const { return tokens_; }
  int32_t vocabulary() const { return tokenizer_.vocabulary; }
  const TokenizerFacts& tokenizer() const { return tokenizer_; }
  // Returns whether the files are token files, so that document boundaries count.
  bool packs_documents() const { return parts_.front().token_file.has_value(); }
  // Returns whether any token carries no loss.
  bool has_loss_mask() const { return has_loss_mask_; }

  // Reads tokens [begin, begin + out.size()), which must lie inside the corpus; a token that carries no loss is
  // given as its complement, ~id. kCorrupt names a damaged token file.
  Result<void> read_marked(int64_t begin, std::span<int32_t> out) const;
  // Reads the same tokens, their ids alone.
  Result<void> read(int64_t begin, std::span<int32_t> out) const;

  // Documents are in the order of their tokens; in plain text, each file with its separator is one.
  int64_t documents() const { return documents_; }
  // Returns the index of the document's first token; `document` = documents() gives tokens().
  int64_t document_begin(int64_t document) const;
  // Returns the document to which a token belongs.
  int64_t document_of(int64_t token) const;

  // Returns what tells this corpus from another of as many tokens, as eight hexadecimal digits. Token files have
  // checksums, which are all it takes; of a text it reads at most 1 GiB, spread evenly over it.
  std::string digest() const;

  // Returns the entropy in nats of the token frequencies (plain text: separators not counted), which is the loss
  // that the best model that ignores context would reach. Reads at most `most` tokens, in stretches spread evenly.
  double unigram_entropy(int64_t most = int64_t{1} << 26) const;

 private:
  struct Part {
    MappedFile file;
    std::optional<TokenFile> token_file;
    int64_t begin = 0, tokens = 0;  // tokens, the separator included
    int64_t first_document = 0;
  };
  Corpus() = default;
  Result<void> append(const std::string& path, const std::string& key);
  Result<void> check_fits(const TokenizerFacts& tokenizer, bool is_text, const std::string& path,
                          const std::string& key) const;
  const Part& part_of(int64_t token) const;

  std::vector<Part> parts_;
  TokenizerFacts tokenizer_;
  int64_t tokens_ = 0, documents_ = 0;
  bool has_loss_mask_ = false;
};

}  // namespace shardrun::data
