#include "runtime/record/token_file_format.h"

#include <algorithm>

namespace shardrun::record {

std::string header_fault(const TokenFileHeader& header) {
  if (header.checksum != header_checksum(header)) return "its header does not match its checksum";
  if (header.vocabulary < 1 || header.vocabulary > kMaximumVocabulary)
    return fmt::format("its vocabulary is {}", header.vocabulary);
  if (header.token_bytes != token_bytes_for(header.vocabulary))
    return fmt::format("its tokens of {} bytes do not fit its vocabulary", header.token_bytes);
  if (header.tokens < 1 || header.documents < 1 || header.documents > header.tokens)
    return fmt::format("it holds {} documents and {} tokens", header.documents, header.tokens);
  if (std::find(header.tokenizer.begin(), header.tokenizer.end(), '\0') == header.tokenizer.end())
    return "its tokenizer's name has no end";
  for (const int32_t id : header.special) {
    if (id < -1 || id >= static_cast<int32_t>(header.vocabulary))
      return fmt::format("its special token {} is outside of its vocabulary", id);
  }
  return "";
}

std::string size_fault(const TokenFileHeader& header, uint64_t file_bytes) {
  // What is far too large is found before it is multiplied.
  if (header.tokens > file_bytes / header.token_bytes || header.documents > file_bytes / sizeof(uint64_t))
    return fmt::format("it ends after {} bytes", file_bytes);
  const size_t payload = payload_bytes(header);
  const size_t whole = sizeof(header) + payload + blocks_of(payload) * sizeof(uint32_t);
  return file_bytes == whole ? "" : fmt::format("it has {} bytes in the place of {}", file_bytes, whole);
}

}  // namespace shardrun::record
