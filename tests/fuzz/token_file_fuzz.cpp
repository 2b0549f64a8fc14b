// Runs libFuzzer over token files: each input as it stands, and again with checksums that hold, so that what lies
// behind them is reached too; and over their beginnings, of which the launcher says what the files are.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/submit/tokenizer_lint.h"
#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/token_file.h"

using namespace shardrun;
using namespace shardrun::data;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Returns `text` with the fixed fields and the checksums of a token file, as far as its size allows.
std::string with_checksums(std::string text) {
  record::TokenFileHeader header;
  if (text.size() < sizeof(header)) return text;
  std::memcpy(&header, text.data(), sizeof(header));
  std::copy(record::kTokenFileMagic.begin(), record::kTokenFileMagic.end(), header.magic.begin());
  header.version = record::kTokenFileVersion;
  header.byte_order = record::kByteOrderMark;
  header.vocabulary %= record::kMaximumVocabulary + 2;
  header.token_bytes = record::token_bytes_for(header.vocabulary);
  header.tokens %= 1 << 12;
  header.documents %= 1 << 8;
  header.tokenizer.back() = '\0';
  for (int32_t& id : header.special)
    id = header.vocabulary > 0 ? id % static_cast<int32_t>(header.vocabulary) : -1;
  header.checksum = record::header_checksum(header);
  std::memcpy(text.data(), &header, sizeof(header));
  const size_t payload = record::payload_bytes(header), blocks = record::blocks_of(payload);
  text.resize(sizeof(header) + payload + blocks * sizeof(uint32_t));
  for (size_t block = 0; block < blocks; ++block) {
    const size_t begin = block * record::kBlockBytes;
    const uint32_t checksum = base::crc32c(
        bytes_of(text).subspan(sizeof(header) + begin, std::min(record::kBlockBytes, payload - begin)));
    std::memcpy(text.data() + sizeof(header) + payload + block * sizeof(checksum), &checksum,
                sizeof(checksum));
  }
  return text;
}

// Whatever the launcher knows of a file by its beginning, the trainer says, too.
void check_beginning(const std::string& bytes) {
  const auto known =
      launcher::data_file_of(std::string_view(bytes).substr(0, sizeof(record::TokenFileHeader)));
  const auto file = TokenFile::parse(bytes_of(bytes), "fuzz");
  SHARDRUN_CHECK(known.is_read || (!file && !known.tokens));
  SHARDRUN_CHECK(!file || (known.tokens && known.tokens->tokens == static_cast<uint64_t>(file->tokens())));
  if (!known.tokens) return;
  SHARDRUN_CHECK(record::header_fault(*known.tokens).empty());
  SHARDRUN_CHECK(!record::size_fault(*known.tokens, bytes.size()).empty() ||
                 known.tokens->tokens <= bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& bytes : {text, with_checksums(text)}) {
    check_beginning(bytes);
    const auto file = TokenFile::parse(bytes_of(bytes), "fuzz");
    if (!file) continue;
    // What is accepted can be read everywhere, and its documents fill it.
    int64_t total = 0;
    for (int64_t document = 0; document < file->documents(); ++document) {
      const int64_t tokens = file->document_begin(document + 1) - file->document_begin(document);
      SHARDRUN_CHECK(tokens >= 1);
      total += tokens;
    }
    SHARDRUN_CHECK(total == file->tokens());
    std::vector<int32_t> ids(static_cast<size_t>(file->tokens()));
    if (!file->read(0, ids)) continue;
    for (const int32_t id : ids) {
      SHARDRUN_CHECK((id < 0 ? ~id : id) < file->tokenizer().vocabulary);
      SHARDRUN_CHECK(id >= 0 || file->has_loss_mask());
    }
  }
  return 0;
}
