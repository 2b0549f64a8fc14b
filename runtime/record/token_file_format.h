// The bytes of a token file, as docs/formats.md, "Token files", specifies them, and how it knows the tokenizer that made it:
// shared by its reader, its writer, and whoever asks what a file is.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::record {

inline constexpr std::string_view kTokenFileMagic = "SHRDTOKS";
inline constexpr uint32_t kTokenFileVersion = 1;
inline constexpr uint32_t kByteOrderMark = 0x01020304;
inline constexpr uint32_t kHasLossMask = 1;
inline constexpr size_t kBlockBytes = 4096;
inline constexpr uint32_t kMaximumVocabulary = 1U << 24;
inline constexpr uint32_t kIdBits = 0x7fffffffU;

// What tokenizers are called in a folder of weights, and their kind in a header.
struct TokenizerFile {
  const char* name;
  const char* kind;
};
inline constexpr TokenizerFile kTokenizerFiles[] = {
    {"tokenizer.json", "bpe"}, {"tokenizer.model", "sentencepiece"}, {"vocab.txt", "wordpiece"}};

struct TokenFileHeader {
  std::array<char, 8> magic{};
  uint32_t version = kTokenFileVersion;
  uint32_t byte_order = kByteOrderMark;
  uint32_t token_bytes = 2;
  uint32_t vocabulary = 0;
  uint64_t tokens = 0;
  uint64_t documents = 0;
  std::array<char, 16> tokenizer{};  // kind, zero-padded
  uint32_t tokenizer_hash = 0;
  std::array<int32_t, 5> special{};  // begin, end, unknown, pad, mask
  uint32_t flags = 0;
  uint32_t checksum = 0;  // CRC-32C of the bytes before it
};
static_assert(sizeof(TokenFileHeader) == 88 && offsetof(TokenFileHeader, checksum) == 84);

inline uint32_t header_checksum(const TokenFileHeader& header) {
  return base::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(TokenFileHeader, checksum)));
}

// The hashes of tokenizers, of what decides about their tokens: of a tokenizer.json its text and the ids that begin and end a
// document, of a SentencePiece model its bytes, of a vocab.txt its text and the three settings of BERT's.
inline uint32_t bpe_hash(std::string_view text, int32_t begin, int32_t end) {
  const std::string ids = fmt::format("{} {}", begin, end);
  return base::crc32c(std::as_bytes(std::span(ids)), base::crc32c(std::as_bytes(std::span(text))));
}
inline uint32_t sentencepiece_hash(std::string_view model) {
  return base::crc32c(std::as_bytes(std::span(model)));
}
inline uint32_t wordpiece_hash(std::string_view vocabulary, bool lower_case, bool strip_accents,
                               bool split_chinese) {
  const std::string settings = fmt::format("{:d}{:d}{:d}", lower_case, strip_accents, split_chinese);
  return base::crc32c(std::as_bytes(std::span(settings)), base::crc32c(std::as_bytes(std::span(vocabulary))));
}

// The top bit of a token says "no loss", so two bytes hold ids below 2^15.
inline constexpr uint32_t token_bytes_for(uint32_t vocabulary) {
  return vocabulary <= (1U << 15) ? 2 : 4;
}

// Returns the offset of the document table, counted from the end of the header.
inline constexpr size_t table_offset_in_payload(const TokenFileHeader& header) {
  return (header.tokens * header.token_bytes + 7) / 8 * 8;
}
// Returns the bytes of tokens, padding and document table: what the block checksums cover.
inline constexpr size_t payload_bytes(const TokenFileHeader& header) {
  return table_offset_in_payload(header) + header.documents * sizeof(uint64_t);
}
inline constexpr size_t blocks_of(size_t payload) {
  return (payload + kBlockBytes - 1) / kBlockBytes;
}

// Returns what is wrong with a header of this version on its own, e.g. "its vocabulary is 0"; empty if nothing is.
std::string header_fault(const TokenFileHeader& header);
// Returns what is wrong with the size of its file, where nothing is with the header.
std::string size_fault(const TokenFileHeader& header, uint64_t file_bytes);

}  // namespace shardrun::record
