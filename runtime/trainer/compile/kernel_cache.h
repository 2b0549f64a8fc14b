// KernelCache: compiled kernels in one folder that all nodes share, each under the digest of its recipe.
//
//   <folder>/<digest>         an Entry; appears by rename, so it is whole or not there
//   <folder>/<digest>.lease   who is making it (lease.h)
//   <folder>/<digest>.damaged what was found instead of an entry, kept for a look
//   <folder>/<digest>.compiler what a compiler of entries here calls itself, under the digest of that
//
// Thread rule: thread-safe; every function stands for itself on the file system.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/entry.h"

namespace shardrun::compile {

using base::Result;

class KernelCache {
 public:
  // Makes the folder (0700) when it is missing. kRefused when anybody but root and us could write it or a folder
  // above it: what it holds is run.
  static Result<KernelCache> open(const std::string& folder);

  // nullopt when there is none; so is a damaged one, which is put aside and named in `damage`.
  Result<std::optional<Entry>> look_up(const std::string& digest, std::string* damage = nullptr) const;
  Result<void> publish(const std::string& digest, const Entry& entry) const;
  // So that it is made again.
  Result<void> forget(const std::string& digest) const;

  // A compiler's identity, for nodes that have none: without it they could not name what it made.
  Result<void> remember_compiler(const std::string& identity) const;
  // In descending order, the newest version of one compiler first.
  Result<std::vector<std::string>> compilers() const;

  std::string path_of(const std::string& digest) const { return folder_ + "/" + digest; }
  std::string lease_of(const std::string& digest) const { return path_of(digest) + ".lease"; }
  const std::string& folder() const { return folder_; }

 private:
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

}  // namespace shardrun::compile
