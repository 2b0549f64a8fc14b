// Lease: a file that says who is compiling an entry, so that others do something else meanwhile.
//
// Leases save work and decide nothing: an entry is complete when it is published, whoever made it, and two makers
// publish the same bytes. They hold over file systems without locks. A lease is stale, and may be taken, when its
// holder was a process of this kernel and PID namespace that is gone, or when it was not renewed for
// kLeaseLifetime by the file system's own clock.
// Thread rule: a lease belongs to one thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::compile {

inline constexpr std::chrono::seconds kLeaseLifetime{20};

class Lease {
 public:
  // nullopt when somebody holds it; `holder` then says who, "node (process 123)". kIo.
  static base::Result<std::optional<Lease>> take(const std::string& path, std::string* holder = nullptr);
  Lease(Lease&& other) noexcept : path_(std::move(other.path_)), text_(std::move(other.text_)) {
    other.path_.clear();
  }
  Lease& operator=(Lease&&) = delete;
  ~Lease();  // gives it back, if it is still ours

  // At least every few seconds.
  void renew() const;

 private:
  Lease(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}
  std::string path_, text_;
};

}  // namespace shardrun::compile
