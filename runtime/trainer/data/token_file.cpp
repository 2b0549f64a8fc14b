#include "runtime/trainer/data/token_file.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/record/token_file_format.h"

namespace shardrun::data {

using base::Code;
using base::Error;

bool TokenFile::recognises(std::span<const std::byte> bytes) {
  return bytes.size() >= record::kTokenFileMagic.size() &&
         std::memcmp(bytes.data(), record::kTokenFileMagic.data(), record::kTokenFileMagic.size()) == 0;
}

Result<TokenFile> TokenFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  const auto corrupt = [&](const std::string& what) {
    return Error(Code::kCorrupt,
                 fmt::format("{} is damaged: {}; make it again with shardrun data", name, what));
  };
  record::TokenFileHeader header;
  if (!recognises(bytes)) return corrupt("it does not begin as a token file");
  if (bytes.size() < sizeof(header)) return corrupt("it ends inside its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.byte_order != record::kByteOrderMark || header.version != record::kTokenFileVersion) {
    return Error(Code::kUnsupported,
                 fmt::format("{} has format version {} (this build reads {}), or is of a machine "
                             "of another byte order; make it again with shardrun data",
                             name, header.version, record::kTokenFileVersion));
  }
  const size_t size = bytes.size();
  if (const std::string fault = record::header_fault(header); !fault.empty()) return corrupt(fault);
  if (const std::string fault = record::size_fault(header, size); !fault.empty()) return corrupt(fault);
  const size_t payload = record::payload_bytes(header);

  TokenFile file;
  file.name_ = name;
  file.bytes_ = bytes.data();
  file.tokenizer_ = {
      header.tokenizer.data(),
      header.tokenizer_hash,
      static_cast<int32_t>(header.vocabulary),
      {header.special[0], header.special[1], header.special[2], header.special[3], header.special[4]}};
  file.tokens_ = static_cast<int64_t>(header.tokens);
  file.documents_ = static_cast<int64_t>(header.documents);
  file.token_bytes_ = header.token_bytes;
  file.table_offset_ = sizeof(header) + record::table_offset_in_payload(header);
  file.checksums_offset_ = sizeof(header) + payload;
  file.file_bytes_ = size;
  file.has_loss_mask_ = (header.flags & record::kHasLossMask) != 0;
  RETURN_IF_ERROR(file.check_blocks(record::table_offset_in_payload(header) / record::kBlockBytes,
                                    record::blocks_of(payload) - 1));
  int64_t before = -1;
  for (int64_t document = 0; document < file.documents_; ++document) {
    const int64_t begin = file.document_begin(document);
    if (document == 0 ? begin != 0 : begin <= before || begin >= file.tokens_)
      return corrupt(fmt::format("document {} begins at token {}", document, begin));
    before = begin;
  }
  return file;
}

uint32_t TokenFile::digest() const {
  const uint32_t header = base::crc32c({bytes_, sizeof(record::TokenFileHeader)});
  return base::crc32c({bytes_ + checksums_offset_, file_bytes_ - checksums_offset_}, header);
}

int64_t TokenFile::document_begin(int64_t document) const {
  if (document == documents_) return tokens_;
  uint64_t begin = 0;
  std::memcpy(&begin, bytes_ + table_offset_ + static_cast<size_t>(document) * sizeof(begin), sizeof(begin));
  return static_cast<int64_t>(begin);
}

Result<void> TokenFile::check_blocks(size_t first, size_t last) const {
  const size_t payload = checksums_offset_ - sizeof(record::TokenFileHeader);
  for (size_t block = first; block <= last; ++block) {
    const size_t begin = block * record::kBlockBytes, size = std::min(record::kBlockBytes, payload - begin);
    uint32_t expected = 0;
    std::memcpy(&expected, bytes_ + checksums_offset_ + block * sizeof(expected), sizeof(expected));
    if (base::crc32c({bytes_ + sizeof(record::TokenFileHeader) + begin, size}) != expected) {
      return Error(
          Code::kCorrupt,
          fmt::format("{} is damaged: bytes {} to {} do not match their checksum; make it again with "
                      "shardrun data",
                      name_, sizeof(record::TokenFileHeader) + begin,
                      sizeof(record::TokenFileHeader) + begin + size));
    }
  }
  return {};
}

uint32_t TokenFile::raw_token(int64_t index) const {
  const std::byte* at = bytes_ + sizeof(record::TokenFileHeader) + static_cast<size_t>(index) * token_bytes_;
  if (token_bytes_ == sizeof(uint16_t)) {
    uint16_t token = 0;
    std::memcpy(&token, at, sizeof(token));
    return (token & 0x7fffU) | (token & 0x8000U) << 16;
  }
  uint32_t token = 0;
  std::memcpy(&token, at, sizeof(token));
  return token;
}

Result<void> TokenFile::read(int64_t begin, std::span<int32_t> out) const {
  if (out.empty()) return {};
  const auto end = begin + static_cast<int64_t>(out.size());
  SHARDRUN_CHECK(begin >= 0 && end <= tokens_);
  RETURN_IF_ERROR(check_blocks(static_cast<size_t>(begin) * token_bytes_ / record::kBlockBytes,
                               (static_cast<size_t>(end) * token_bytes_ - 1) / record::kBlockBytes));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t raw = raw_token(begin + static_cast<int64_t>(i));
    const auto id = static_cast<int32_t>(raw & record::kIdBits);
    const bool no_loss = raw != static_cast<uint32_t>(id);
    if (id >= tokenizer_.vocabulary || (no_loss && !has_loss_mask_)) {
      return Error(Code::kCorrupt,
                   fmt::format("{} is damaged: token {} is {:#x}, which its header rules out; make it "
                               "again with shardrun data",
                               name_, begin + static_cast<int64_t>(i), raw));
    }
    out[i] = no_loss ? ~id : id;
  }
  return {};
}

void TokenFile::count(std::span<int64_t> counts, int64_t first, int64_t tokens) const {
  for (int64_t i = first; i < first + tokens; ++i) {
    const uint32_t id = raw_token(i) & record::kIdBits;
    if (id < counts.size()) ++counts[id];
  }
}

}  // namespace shardrun::data
