// MappedFile: a whole file as read-only bytes, shared with every process that maps it.
//
// Nothing is read until it is looked at. A file that another program shortens meanwhile ends this process with
// SIGBUS; data files are therefore replaced, never edited.
// Thread rule: immutable after open; thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::data {

using base::Result;

class MappedFile {
 public:
  // kNotFound, kIo, and kInvalid for what is not a plain file or is empty; messages begin with `key`, e.g. "[data]
  // files".
  static Result<MappedFile> open(const std::string& path, const std::string& key);
  // Does the same with a file that is open already; `path` names it.
  static Result<MappedFile> map(int fd, const std::string& path, const std::string& key);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_;
  size_t size_;
};

}  // namespace shardrun::data
