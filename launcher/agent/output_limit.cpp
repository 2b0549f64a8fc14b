#include "launcher/agent/output_limit.h"

#include <algorithm>
#include <filesystem>
#include <string>

namespace shardrun::launcher {
namespace {

// Returns the bytes of what ranks wrote in an attempt.
int64_t output_of(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code gone;
  std::filesystem::directory_iterator entry(folder, gone), none;
  for (; !gone && entry != none; entry.increment(gone)) {
    if (!entry->path().filename().string().starts_with("rank_")) continue;
    std::error_code unknown;
    const auto size = entry->file_size(unknown);
    if (!unknown) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace

int64_t rank_output_bytes(const spec::LoggingSpec& logging, const record::RunDir& run, int number,
                          int world_size) {
  constexpr int64_t kLeast = 256 << 10, kMebibyte = 1 << 20;
  int64_t left = logging.run_limit_mib * kMebibyte;
  for (int attempt = 0; attempt < number; ++attempt) left -= output_of(run.attempt(attempt));
  return std::max(kLeast, std::min(logging.rank_limit_mib * kMebibyte, left / 2 / std::max(1, world_size)));
}

}  // namespace shardrun::launcher
