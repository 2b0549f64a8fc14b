#include "runtime/trainer/compile/kernel_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/trust.h"
#include "runtime/trainer/compile/digest.h"

namespace shardrun::compile {

using base::Code;

constexpr std::string_view kCompilerSuffix = ".compiler";

Result<KernelCache> KernelCache::open(const std::string& folder) {
  RETURN_IF_ERROR(base::make_directories(folder, 0700));
  auto ours = base::refuse_if_others_write(folder);
  if (!ours) return std::move(ours).error().context("the kernel cache holds what will be run");
  return KernelCache(folder);
}

Result<std::optional<Entry>> KernelCache::look_up(const std::string& digest, std::string* damage) const {
  constexpr uint64_t kLargestEntry = uint64_t{64} << 20;
  const std::string path = path_of(digest);
  auto bytes = base::read_file(path, kLargestEntry);
  if (!bytes && bytes.error().code() == Code::kNotFound) return std::optional<Entry>();
  // A shared file system may have replaced the file under us; a second look is at the new one.
  if (!bytes && bytes.error().code() == Code::kIo) bytes = base::read_file(path, kLargestEntry);
  if (!bytes && bytes.error().code() != Code::kRefused) return std::move(bytes).error();
  auto entry = bytes ? parse_entry(*bytes) : Result<Entry>(bytes.error());
  if (entry) return std::optional<Entry>(std::move(*entry));
  const std::string aside = path + ".damaged";
  if (::rename(path.c_str(), aside.c_str()) != 0 && errno != ENOENT)
    return base::errno_error(Code::kIo, path, errno);
  if (damage != nullptr)
    *damage = fmt::format("{}: {}; put aside as {}", path, entry.error().to_string(), aside);
  return std::optional<Entry>();
}

Result<void> KernelCache::publish(const std::string& digest, const Entry& entry) const {
  return base::write_file_atomically(path_of(digest), to_bytes(entry), 0600);
}

Result<void> KernelCache::remember_compiler(const std::string& identity) const {
  const std::string path = path_of(sha256_hex(identity)) + std::string(kCompilerSuffix);
  if (::access(path.c_str(), F_OK) == 0) return {};
  return base::write_file_atomically(path, identity, 0600);
}

Result<std::vector<std::string>> KernelCache::compilers() const {
  constexpr uint64_t kLongestIdentity = 4096;
  std::vector<std::string> identities;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder_, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() != kCompilerSuffix) continue;
    auto identity = base::read_file(entry->path().string(), kLongestIdentity);
    if (!identity) return std::move(identity).error();
    identities.push_back(std::move(*identity));
  }
  if (error) return base::errno_error(Code::kIo, folder_, error.value());
  std::sort(identities.rbegin(), identities.rend());
  return identities;
}

Result<void> KernelCache::forget(const std::string& digest) const {
  if (::unlink(path_of(digest).c_str()) != 0 && errno != ENOENT)
    return base::errno_error(Code::kIo, path_of(digest), errno);
  return {};
}

}  // namespace shardrun::compile
