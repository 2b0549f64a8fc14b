#include "runtime/data/corpus.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::data {

using base::Code;
using base::Error;

Result<Corpus> Corpus::open(std::span<const std::string> paths, const std::string& key) {
  if (paths.empty())
    return Error(Code::kInvalid, fmt::format("{}: no file is named; name at least one text file", key));
  Corpus corpus;
  for (const std::string& path : paths) RETURN_IF_ERROR(corpus.append(path, key));
  return corpus;
}

Result<void> Corpus::append(const std::string& path, const std::string& key) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) {
    return Error(Code::kNotFound,
                 fmt::format("{}: {} does not exist on this node; name a text file that every "
                             "node can read",
                             key, path));
  }
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    return base::errno_error(Code::kIo, fmt::format("{}: {}", key, path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error(Code::kInvalid, fmt::format("{}: {} is not a plain file; name text files", key, path));
  }
  if (status.st_size == 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is empty; remove it from the list or fill it", key, path));
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (memory == MAP_FAILED)
    return base::errno_error(Code::kIo, fmt::format("{}: mapping {}", key, path), errno);
  documents_.push_back({static_cast<const unsigned char*>(memory), status.st_size, tokens_});
  tokens_ += status.st_size + 1;
  return {};
}

Corpus::~Corpus() {
  for (const Document& document : documents_) {
    ::munmap(const_cast<unsigned char*>(document.bytes), static_cast<size_t>(document.size));
  }
}

void Corpus::read(int64_t begin, std::span<int32_t> out) const {
  SHARDRUN_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens_);
  auto document = std::upper_bound(documents_.begin(), documents_.end(), begin,
                                   [](int64_t token, const Document& other) { return token < other.begin; });
  --document;
  int64_t offset = begin - document->begin;
  for (int32_t& token : out) {
    if (offset > document->size) {
      ++document;
      offset = 0;
    }
    token = offset < document->size ? document->bytes[offset] : kDocumentSeparator;
    ++offset;
  }
}

double Corpus::unigram_entropy() const {
  std::array<int64_t, kByteVocabulary> counts{};
  int64_t total = 0;
  for (const Document& document : documents_) {
    for (int64_t i = 0; i < document.size; ++i) ++counts[document.bytes[i]];
    total += document.size;
  }
  double entropy = 0.0;
  for (int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace shardrun::data
