#include "runtime/contract/epoch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/shared_folder.h"

namespace shardrun::contract {

using base::Code;
using base::Error;
using base::Result;

namespace {
namespace fs = std::filesystem;

constexpr std::string_view kStagePrefix = ".writing_", kFencedPrefix = ".fenced", kGonePrefix = "gone_",
                           kAttemptPrefix = "attempt_";
// How often, and how long after each other, a stage is tried to be removed in which somebody still makes files.
constexpr int kRemovals = 100;
constexpr auto kRemovalPause = std::chrono::milliseconds(10);

// Returns the number behind the prefix; nullopt when the name is another.
std::optional<int> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size());
  int number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
  return number;
}

Error folder_error(const std::string& folder, const std::error_code& failure) {
  return Error(Code::kIo, fmt::format("{}: {}", folder, failure.message()));
}

// Removes what is in a folder that nobody may publish from, each thing under another name than it was made with: what is being
// removed cannot be published meanwhile.
void empty(const fs::path& condemned) {
  std::error_code failure, ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(condemned, failure), end; !failure && entry != end;
       entry.increment(failure))
    found.push_back(entry->path());
  for (const fs::path& path : found) {
    const std::string name = path.filename();
    const fs::path gone =
        name.starts_with(kGonePrefix) ? path : condemned / (std::string(kGonePrefix) + name);
    fs::remove_all(gone, ignored);
    if (gone == path) continue;
    fs::rename(path, gone, failure);
    if (!failure) fs::remove_all(gone, ignored);
  }
}

// A client of a file server may know a folder by its handle, and use it for a while whatever its name is now. So nothing is
// fenced before the folder is gone.
Result<void> remove_for_good(const fs::path& condemned) {
  for (int tries = 0; tries < kRemovals; ++tries) {
    if (::rmdir(condemned.c_str()) == 0 || errno == ENOENT) return {};
    if (errno != ENOTEMPTY && errno != EEXIST) break;
    empty(condemned);
    if (tries > 0) std::this_thread::sleep_for(kRemovalPause);
  }
  return base::errno_error(
      Code::kIo, fmt::format("removing {}, where an earlier attempt wrote", condemned.string()), errno);
}

// Takes a stage's name away first, in one step: whoever still writes in it cannot publish from it any more.
Result<void> condemn(const fs::path& stage) {
  const fs::path condemned = stage.parent_path() / (std::string(kFencedPrefix) + stage.filename().string());
  RETURN_IF_ERROR(remove_for_good(condemned));
  std::error_code failure;
  fs::rename(stage, condemned, failure);
  if (failure && failure != std::errc::no_such_file_or_directory)
    return folder_error(stage.string(), failure);
  return remove_for_good(condemned);
}

}  // namespace

Result<int> read_epoch(const record::RunDir& run) {
  ASSIGN_OR_RETURN(auto text, base::read_file(run.epoch(), /*limit_bytes=*/64));
  int epoch = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), epoch);
  if (failure != std::errc() || *end != '\n' || epoch < 0) {
    return Error(Code::kCorrupt, run.epoch() + ": holds no attempt's number");
  }
  return epoch;
}

Result<void> write_epoch(const record::RunDir& run, int attempt) {
  return base::write_file_atomically(run.epoch(), fmt::format("{}\n", attempt), record::kFileMode);
}

Result<int> newest_attempt(const record::RunDir& run) {
  const auto epoch = read_epoch(run);
  if (!epoch && epoch.error().code() == Code::kIo) return epoch.error();
  int newest = epoch ? *epoch : -1;
  std::error_code failure;
  for (fs::directory_iterator entry(run.root, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    newest = std::max(newest, number_behind(entry->path().filename().string(), kAttemptPrefix).value_or(-1));
  }
  if (failure) return folder_error(run.root, failure);
  return newest;
}

Result<void> make_attempt(const record::RunDir& run, int attempt) {
  if (::mkdir(run.attempt(attempt).c_str(), record::kFolderMode) == 0) return {};
  return base::errno_error(Code::kIo, "creating " + run.attempt(attempt), errno);
}

Result<void> check_epoch(const record::RunDir& run, int attempt) {
  base::look_afresh(run.root);
  const auto epoch = read_epoch(run);
  if (!epoch && epoch.error().code() != Code::kNotFound) return epoch.error();
  const bool has_next = ::access(run.attempt(attempt + 1).c_str(), F_OK) == 0;
  const int newest = std::max(epoch ? *epoch : 0, has_next ? attempt + 1 : 0);
  if (newest <= attempt) return {};
  return Error(Code::kRefused, fmt::format("{}: attempt {} has begun, so attempt {} may not write any more",
                                           run.root, newest, attempt));
}

std::string checkpoint_directory(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  const std::string& given = spec.checkpoint.directory;
  if (given.empty()) return record::RunDir{plan.run_directory}.checkpoints();
  return given.front() == '/' ? given : plan.working_directory + "/" + given;
}

std::string checkpoint_stage(const std::string& checkpoint_directory, const std::string& run_id,
                             int attempt) {
  return fmt::format("{}/{}{}_{}", checkpoint_directory, kStagePrefix, run_id, attempt);
}

// The stage is made before anybody looks for others: of two attempts that do this at once, the later one finds the
// earlier one's stage, or the earlier one finds that it is late.
Result<void> fence_checkpoints(const record::RunDir& run, const std::string& checkpoint_directory,
                               const std::string& run_id, int attempt) {
  RETURN_IF_ERROR(base::make_directories(checkpoint_directory));
  const fs::path stage = checkpoint_stage(checkpoint_directory, run_id, attempt);
  RETURN_IF_ERROR(base::make_directories(stage.string()));
  const auto still_newest = [&]() -> Result<void> {
    auto ours = check_epoch(run, attempt);
    if (!ours) RETURN_IF_ERROR(condemn(stage));
    return ours;
  };
  RETURN_IF_ERROR(still_newest());
  const std::string ours = fmt::format("{}{}_", kStagePrefix, run_id);
  std::error_code failure;
  for (fs::directory_iterator entry(checkpoint_directory, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename();
    // What a conductor was about to remove when it died.
    if (name.starts_with(kFencedPrefix)) RETURN_IF_ERROR(remove_for_good(entry->path()));
    if (!name.starts_with(kStagePrefix) || entry->path() == stage) continue;
    // A later stage under our run's name is a later attempt's, or it was left by another run of the same name.
    if (number_behind(name, ours).value_or(-1) > attempt) RETURN_IF_ERROR(still_newest());
    RETURN_IF_ERROR(condemn(entry->path()));
  }
  if (failure) return folder_error(checkpoint_directory, failure);
  return {};
}

}  // namespace shardrun::contract
