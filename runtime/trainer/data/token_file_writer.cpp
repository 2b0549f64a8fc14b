#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/token_file.h"

namespace shardrun::data {

using base::Code;
using base::Error;

namespace {
constexpr size_t kWriteBytes = size_t{1} << 20;
static_assert(kWriteBytes % record::kBlockBytes == 0);
// A lock is seen on other nodes only where the file system passes it on; who lives writes, and so is younger than this.
constexpr std::chrono::hours kAbandonedFor{1};
constexpr std::string_view kTemporaryMark = ".tmp.", kRandomLetters = "XXXXXX";

// Makes a new file beside `path` and locks it, where the file system can. Whoever removes abandoned files may find it before it is
// locked; then another is made.
Result<base::UniqueFd> make_temporary(const std::string& path, std::string& temporary) {
  while (true) {
    temporary = fmt::format("{}{}{}", path, kTemporaryMark, kRandomLetters);
    base::UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd) return base::errno_error(Code::kIo, fmt::format("creating a file beside {}", path), errno);
    const bool is_taken = ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat there {};
    if (!is_taken && ::lstat(temporary.c_str(), &there) == 0) return fd;
  }
}

// Gives the complete file its name, unless another has got it meanwhile.
Result<void> place(const std::string& temporary, const std::string& path) {
  if (::link(temporary.c_str(), path.c_str()) == 0) {
    ::unlink(temporary.c_str());
    return {};
  }
  const int failure = errno;
  struct stat status {};
  // A file server that was asked twice answers that the name is there, when the first answer was lost.
  if (failure == EEXIST && ::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) {
    ::unlink(temporary.c_str());
    return {};
  }
  if (failure == EEXIST) {
    return Error(Code::kRefused,
                 fmt::format("{} was written by another meanwhile; name another folder", path));
  }
  // Not every file system has links.
  if (failure != EPERM && failure != EOPNOTSUPP && failure != ENOSYS)
    return base::errno_error(Code::kIo, path, failure);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return base::errno_error(Code::kIo, path, errno);
  return {};
}
}  // namespace

Result<TokenFileWriter> TokenFileWriter::create(const std::string& path, const TokenizerFacts& tokenizer) {
  SHARDRUN_CHECK(tokenizer.vocabulary >= 1 &&
                 tokenizer.vocabulary <= static_cast<int32_t>(record::kMaximumVocabulary));
  TokenFileWriter writer;
  ASSIGN_OR_RETURN(writer.fd_, make_temporary(path, writer.temporary_));
  writer.path_ = path;
  writer.tokenizer_ = tokenizer;
  writer.token_bytes_ = record::token_bytes_for(static_cast<uint32_t>(tokenizer.vocabulary));
  const record::TokenFileHeader place;
  RETURN_IF_ERROR(base::write_all(writer.fd_.get(), std::as_bytes(std::span(&place, 1)), path));
  return writer;
}

void TokenFileWriter::remove_abandoned(const std::string& path) {
  const std::filesystem::path whole = path;
  const std::string begin = whole.filename().string() + std::string(kTemporaryMark);
  const std::filesystem::path folder = whole.has_parent_path() ? whole.parent_path() : ".";
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string(), temporary = entry.path().string();
    if (!name.starts_with(begin) || name.size() != begin.size() + kRandomLetters.size()) continue;
    if (!entry.is_regular_file(ignored) || entry.is_symlink(ignored)) continue;
    const auto written = std::filesystem::last_write_time(entry.path(), ignored);
    if (ignored || std::filesystem::file_time_type::clock::now() - written < kAbandonedFor) continue;
    const base::UniqueFd fd(::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(temporary.c_str());
  }
}

TokenFileWriter::~TokenFileWriter() {
  if (fd_) ::unlink(temporary_.c_str());
}

void TokenFileWriter::put(const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  buffer_.insert(buffer_.end(), bytes, bytes + size);
}

Result<void> TokenFileWriter::flush(bool last) {
  const size_t size = last ? buffer_.size() : buffer_.size() / kWriteBytes * kWriteBytes;
  const auto ready = std::span(std::as_const(buffer_)).first(size);
  for (size_t begin = 0; begin < size; begin += record::kBlockBytes)
    checksums_.push_back(base::crc32c(ready.subspan(begin, std::min(record::kBlockBytes, size - begin))));
  RETURN_IF_ERROR(base::write_all(fd_.get(), ready, path_));
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(size));
  return {};
}

Result<void> TokenFileWriter::append(std::span<const int32_t> document) {
  if (document.empty()) return {};
  document_begins_.push_back(static_cast<uint64_t>(tokens_));
  for (const int32_t token : document) {
    const bool no_loss = token < 0;
    const auto id = static_cast<uint32_t>(no_loss ? ~token : token);
    SHARDRUN_CHECK(id < static_cast<uint32_t>(tokenizer_.vocabulary));
    has_loss_mask_ = has_loss_mask_ || no_loss;
    if (token_bytes_ == sizeof(uint16_t)) {
      const auto raw = static_cast<uint16_t>(id | (no_loss ? 0x8000U : 0U));
      put(&raw, sizeof(raw));
    } else {
      const uint32_t raw = id | (no_loss ? ~record::kIdBits : 0U);
      put(&raw, sizeof(raw));
    }
  }
  tokens_ += static_cast<int64_t>(document.size());
  return buffer_.size() >= kWriteBytes ? flush(/*last=*/false) : Result<void>();
}

Result<void> TokenFileWriter::finish() {
  if (document_begins_.empty()) {
    return Error(Code::kRefused, fmt::format("{}: there is no document to write", path_));
  }
  record::TokenFileHeader header;
  std::copy(record::kTokenFileMagic.begin(), record::kTokenFileMagic.end(), header.magic.begin());
  header.token_bytes = static_cast<uint32_t>(token_bytes_);
  header.vocabulary = static_cast<uint32_t>(tokenizer_.vocabulary);
  header.tokens = static_cast<uint64_t>(tokens_);
  header.documents = document_begins_.size();
  SHARDRUN_CHECK(tokenizer_.kind.size() < header.tokenizer.size());
  std::copy(tokenizer_.kind.begin(), tokenizer_.kind.end(), header.tokenizer.begin());
  header.tokenizer_hash = tokenizer_.hash;
  const SpecialTokens& special = tokenizer_.special;
  header.special = {special.begin, special.end, special.unknown, special.pad, special.mask};
  header.flags = has_loss_mask_ ? record::kHasLossMask : 0;
  header.checksum = record::header_checksum(header);

  buffer_.resize(buffer_.size() + record::table_offset_in_payload(header) -
                 header.tokens * header.token_bytes);
  put(document_begins_.data(), document_begins_.size() * sizeof(uint64_t));
  RETURN_IF_ERROR(flush(/*last=*/true));
  RETURN_IF_ERROR(base::write_all(fd_.get(), std::as_bytes(std::span(checksums_)), path_));
  if (::lseek(fd_.get(), 0, SEEK_SET) != 0) return base::errno_error(Code::kIo, temporary_, errno);
  RETURN_IF_ERROR(base::write_all(fd_.get(), std::as_bytes(std::span(&header, 1)), path_));
  if (::fchmod(fd_.get(), 0644) != 0 || ::fsync(fd_.get()) != 0)
    return base::errno_error(Code::kIo, temporary_, errno);
  RETURN_IF_ERROR(place(temporary_, path_));
  fd_.reset();
  (void)base::sync_folder(std::filesystem::path(path_).parent_path().string());
  return {};
}

}  // namespace shardrun::data
