// TokenFile: documents as token ids in one file; docs/formats.md, "Token files", specifies the bytes.
//
// The file is mapped, and each read checks the checksums of the 4 KiB blocks that it touches, so damage is found
// where it would be trained on, without reading a large file at the start.
// Thread rule: TokenFile is immutable, thread-safe; TokenFileWriter is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {

class TokenFile {
 public:
  // Returns whether `bytes` begin as a token file does.
  static bool recognises(std::span<const std::byte> bytes);
  // Makes a view of `bytes`, which must outlive it. Checks the header and the document table, not the tokens.
  // kCorrupt, or kUnsupported for another version or byte order; messages begin with `name`.
  static Result<TokenFile> parse(std::span<const std::byte> bytes, const std::string& name);

  const TokenizerFacts& tokenizer() const { return tokenizer_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  // Returns whether any token carries no loss.
  bool has_loss_mask() const { return has_loss_mask_; }
  // Returns the index of the document's first token; `document` = documents() gives tokens().
  int64_t document_begin(int64_t document) const;

  // Reads tokens [begin, begin + out.size()), which must lie inside the file. A token that carries no loss is given
  // as its complement, ~id. kCorrupt names the file and the byte.
  Result<void> read(int64_t begin, std::span<int32_t> out) const;
  // Returns a checksum of the file's header and of the checksums of all its blocks: another file has another one.
  uint32_t digest() const;
  // Adds to `counts` how often each id occurs among `tokens` tokens from `first` on; verifies no checksums.
  void count(std::span<int64_t> counts, int64_t first, int64_t tokens) const;

 private:
  TokenFile() = default;
  Result<void> check_blocks(size_t first, size_t last) const;
  uint32_t raw_token(int64_t index) const;

  std::string name_;
  const std::byte* bytes_ = nullptr;
  TokenizerFacts tokenizer_;
  int64_t tokens_ = 0, documents_ = 0;
  size_t token_bytes_ = 0, table_offset_ = 0, checksums_offset_ = 0, file_bytes_ = 0;
  bool has_loss_mask_ = false;
};

// Writes a token file document by document into PATH.tmp.XXXXXX, which becomes PATH in finish() and is removed if
// that is never reached. It holds a lock on that file, by which remove_abandoned() knows that its process lives.
// Memory: 8 bytes a document and 4 bytes for each 4 KiB of the file.
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(const std::string& path, const TokenizerFacts& tokenizer);
  // Removes the files that writers of `path` left whose processes were killed, and into which nobody has written for an hour.
  // Where the file system has no locks, none is.
  static void remove_abandoned(const std::string& path);
  TokenFileWriter(TokenFileWriter&&) noexcept = default;
  ~TokenFileWriter();

  // Appends one document; an id that carries no loss is given as its complement, ~id. Empty documents are skipped.
  Result<void> append(std::span<const int32_t> document);
  // Waits until everything is on the disk, then gives the file its final name. kRefused when no document was
  // appended, or when a file of that name has appeared meanwhile, which stays.
  Result<void> finish();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(document_begins_.size()); }

 private:
  TokenFileWriter() = default;
  void put(const void* data, size_t size);
  Result<void> flush(bool last);

  std::string path_, temporary_;
  base::UniqueFd fd_;
  TokenizerFacts tokenizer_;
  size_t token_bytes_ = 2;
  int64_t tokens_ = 0;
  bool has_loss_mask_ = false;
  std::vector<uint64_t> document_begins_;
  std::vector<uint32_t> checksums_;
  std::vector<std::byte> buffer_;  // payload not yet written
};

}  // namespace shardrun::data
