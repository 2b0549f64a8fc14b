#include "runtime/trainer/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/foreign_format.h"

namespace shardrun::data {

using base::Code;
using base::Error;

namespace {

constexpr size_t kDigestBlock = 1 << 20, kMostDigestBlocks = 1024;  // bytes; blocks of a text

// Returns the checksum of a text, or of equally many blocks from all over it.
uint32_t text_digest(std::span<const std::byte> text) {
  const size_t blocks = (text.size() + kDigestBlock - 1) / kDigestBlock;
  const size_t read = std::min(blocks, kMostDigestBlocks);
  uint32_t digest = 0;
  for (size_t i = 0; i < read; ++i) {
    const size_t begin = i * blocks / read * kDigestBlock;
    digest = base::crc32c(text.subspan(begin, std::min(kDigestBlock, text.size() - begin)), digest);
  }
  return digest;
}

}  // namespace

Result<Corpus> Corpus::open(std::span<const std::string> paths, const std::string& key) {
  if (paths.empty())
    return Error(Code::kInvalid, fmt::format("{}: no file is named; name at least one text file", key));
  Corpus corpus;
  for (const std::string& path : paths) RETURN_IF_ERROR(corpus.append(path, key));
  return corpus;
}

Result<void> Corpus::append(const std::string& path, const std::string& key) {
  ASSIGN_OR_RETURN(auto file, MappedFile::open(path, key));
  std::optional<TokenFile> token_file;
  if (TokenFile::recognises(file.bytes())) {
    ASSIGN_OR_RETURN(auto parsed, TokenFile::parse(file.bytes(), fmt::format("{}: {}", key, path)));
    token_file.emplace(std::move(parsed));
  } else {
    RETURN_IF_ERROR(record::refuse_foreign_format(file.bytes(), path, key));
  }
  const TokenizerFacts tokenizer = token_file ? token_file->tokenizer() : byte_tokenizer_facts();
  if (parts_.empty()) tokenizer_ = tokenizer;
  RETURN_IF_ERROR(check_fits(tokenizer, !token_file, path, key));
  const int64_t tokens = token_file ? token_file->tokens() : static_cast<int64_t>(file.bytes().size()) + 1;
  const int64_t documents = token_file ? token_file->documents() : 1;
  has_loss_mask_ = has_loss_mask_ || (token_file && token_file->has_loss_mask());
  parts_.push_back({std::move(file), std::move(token_file), tokens_, tokens, documents_});
  tokens_ += tokens;
  documents_ += documents;
  return {};
}

Result<void> Corpus::check_fits(const TokenizerFacts& tokenizer, bool is_text, const std::string& path,
                                const std::string& key) const {
  if (!parts_.empty() && is_text == packs_documents()) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is {} and the files before it are not; list files of one kind", key,
                             path, is_text ? "plain text" : "a token file"));
  }
  if (tokenizer != tokenizer_) {
    return Error(
        Code::kInvalid,
        fmt::format("{}: {} was made with another {} tokenizer (hash {:08x}) than the files before it ({}, "
                    "hash {:08x}); make all of them with one",
                    key, path, tokenizer.kind, tokenizer.hash, tokenizer_.kind, tokenizer_.hash));
  }
  return {};
}

const Corpus::Part& Corpus::part_of(int64_t token) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), token,
                                      [](int64_t value, const Part& part) { return value < part.begin; });
  return *std::prev(after);
}

Result<void> Corpus::read_marked(int64_t begin, std::span<int32_t> out) const {
  SHARDRUN_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens_);
  while (!out.empty()) {
    const Part& part = part_of(begin);
    const int64_t offset = begin - part.begin;
    const auto here = out.first(std::min(out.size(), static_cast<size_t>(part.tokens - offset)));
    if (part.token_file) {
      RETURN_IF_ERROR(part.token_file->read(offset, here));
    } else {
      const auto bytes = part.file.bytes();
      for (size_t i = 0; i < here.size(); ++i) {
        const size_t at = static_cast<size_t>(offset) + i;
        here[i] = at < bytes.size() ? static_cast<int32_t>(bytes[at]) : kDocumentSeparator;
      }
    }
    begin += static_cast<int64_t>(here.size());
    out = out.subspan(here.size());
  }
  return {};
}

Result<void> Corpus::read(int64_t begin, std::span<int32_t> out) const {
  RETURN_IF_ERROR(read_marked(begin, out));
  for (int32_t& token : out) token = token < 0 ? ~token : token;
  return {};
}

int64_t Corpus::document_begin(int64_t document) const {
  SHARDRUN_CHECK(document >= 0 && document <= documents_);
  if (document == documents_) return tokens_;
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), document,
                       [](int64_t value, const Part& part) { return value < part.first_document; });
  const Part& part = *std::prev(after);
  const int64_t inside = document - part.first_document;
  return part.begin + (part.token_file ? part.token_file->document_begin(inside) : 0);
}

int64_t Corpus::document_of(int64_t token) const {
  SHARDRUN_CHECK(token >= 0 && token < tokens_);
  const Part& part = part_of(token);
  if (!part.token_file) return part.first_document;
  // Finds the last document of the part that begins at or before the token.
  int64_t low = 0, high = part.token_file->documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (part.token_file->document_begin(middle) <= token - part.begin ? low : high) = middle;
  }
  return part.first_document + low;
}

std::string Corpus::digest() const {
  uint32_t digest = 0;
  for (const Part& part : parts_) {
    const uint64_t facts[2] = {static_cast<uint64_t>(part.tokens),
                               part.token_file ? part.token_file->digest() : text_digest(part.file.bytes())};
    digest = base::crc32c(std::as_bytes(std::span(facts)), digest);
  }
  return fmt::format("{:08x}", digest);
}

double Corpus::unigram_entropy(int64_t most) const {
  constexpr int64_t kStretch = int64_t{1} << 16;
  const double fraction = std::min(1.0, static_cast<double>(most) / static_cast<double>(tokens_));
  std::vector<int64_t> counts(vocabulary());
  double due = 0.0;  // stretches that should have been read
  for (const Part& part : parts_) {
    const int64_t size =
        part.token_file ? part.token_file->tokens() : static_cast<int64_t>(part.file.bytes().size());
    for (int64_t first = 0; first < size; first += kStretch) {
      due += fraction;
      if (due < 1.0) continue;
      due -= 1.0;
      const int64_t length = std::min(kStretch, size - first);
      if (part.token_file) {
        part.token_file->count(counts, first, length);
      } else {
        for (const std::byte byte : part.file.bytes().subspan(first, length))
          ++counts[static_cast<size_t>(byte)];
      }
    }
  }
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  double entropy = 0.0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace shardrun::data
