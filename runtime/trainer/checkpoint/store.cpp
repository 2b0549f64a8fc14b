#include "runtime/trainer/checkpoint/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/shared_folder.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;

constexpr std::string_view kTemporarySuffix = ".tmp", kCondemnedPrefix = "old_";
constexpr uint64_t kLargestManifestBytes = 64 << 20;
constexpr const char* kBest = "best";

// Returns the names in a folder; empty when it does not exist.
Result<std::vector<std::string>> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr && errno == ENOENT) return names;
  if (folder == nullptr) return base::errno_error(Code::kIo, path, errno);
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  const int failure = errno;
  ::closedir(folder);
  if (failure != 0) return base::errno_error(Code::kIo, path, failure);
  return names;
}

void remove_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

int rename_errno(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

std::string Store::unpublished_path_of(int64_t step) const {
  if (!stage_.empty()) return stage_ + "/" + step_name(step);
  return path_of(step) + std::string(kTemporarySuffix);
}

// Takes the name of a complete checkpoint away first: if the process dies half-way, no ruin is left. The name it gets then is
// in the stage, so a writer whose stage was taken away removes nothing of its successor's, whenever it wakes up.
void Store::remove_checkpoint(int64_t step) const {
  const std::string condemned = condemned_path_of(step);
  remove_folder(condemned);
  if (rename_errno(path_of(step), condemned) == 0) remove_folder(condemned);
}

std::string Store::condemned_path_of(int64_t step) const {
  if (!stage_.empty()) return stage_ + "/" + std::string(kCondemnedPrefix) + step_name(step);
  return path_of(step) + ".old" + std::string(kTemporarySuffix);
}

// Puts the folder in the place of a complete checkpoint; returns errno, or 0. The two change places in one step, so a
// reader finds one of them whole at any moment. A file system that cannot do that has the old one taken away first, and put
// back where the new one cannot take its place.
int Store::replace_checkpoint(const std::string& folder, int64_t step) const {
  const std::string path = path_of(step), condemned = condemned_path_of(step);
  if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    remove_folder(folder);
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) return errno;
  remove_folder(condemned);
  if (const int failure = rename_errno(path, condemned); failure != 0) return failure;
  const int failure = rename_errno(folder, path);
  if (failure == 0) {
    remove_folder(condemned);
  } else {
    (void)rename_errno(condemned, path);
  }
  return failure;
}

Result<void> Store::check_stage() const {
  struct stat status {};
  if (stage_.empty() || ::stat(stage_.c_str(), &status) == 0) return {};
  if (errno != ENOENT) return base::errno_error(Code::kIo, stage_, errno);
  return Error(
      Code::kRefused,
      fmt::format("{}: another attempt writes here now; nothing more of this one is kept", directory_));
}

Result<void> Store::make_unpublished(int64_t step) const {
  const std::string folder = unpublished_path_of(step);
  if (stage_.empty()) return base::make_directories(folder);
  if (::mkdir(folder.c_str(), 0755) == 0 || errno == EEXIST) return {};
  const int failure = errno;
  RETURN_IF_ERROR(check_stage());
  return base::errno_error(Code::kIo, folder, failure);
}

void Store::discard_unpublished(int64_t step) const {
  remove_folder(unpublished_path_of(step));
}

Result<void> Store::write_shard(int64_t step, const Place& place, const plan::ShardLayout& layout,
                                const ShardState& state) const {
  RETURN_IF_ERROR(make_unpublished(step));
  ShardFileWriter writer(unpublished_path_of(step), step, place, layout, state);
  RETURN_IF_ERROR(writer.open());
  const auto elements = static_cast<size_t>(layout.flat_shard_elements);
  std::vector<float> buffer(std::clamp(elements, size_t{1}, ShardFileWriter::kChunkElements));
  while (const auto chunk = writer.take(buffer)) RETURN_IF_ERROR(writer.write(*chunk, buffer));
  return writer.finish();
}

Result<void> Store::publish(const Manifest& given) const {
  RETURN_IF_ERROR(check_stage());
  Manifest manifest = given;
  manifest.epoch = epoch_;
  const std::string final_path = path_of(manifest.step);
  const std::string folder = unpublished_path_of(manifest.step);
  for (int file = 0; file < manifest.spread.files(); ++file) {
    const std::string path = folder + "/" + shard_file_name(file);
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      return Error(Code::kNotFound, fmt::format("{}: rank {} wrote it but it is not here; put [checkpoint] "
                                                "directory on a file system that all nodes share",
                                                path, file));
    }
  }
  RETURN_IF_ERROR(base::write_file_atomically(folder + "/manifest.json", to_json(manifest)));
  RETURN_IF_ERROR(base::sync_folder(folder));
  int failure = rename_errno(folder, final_path);
  if (failure == ENOTEMPTY || failure == EEXIST) failure = replace_checkpoint(folder, manifest.step);
  if (failure == ENOENT) RETURN_IF_ERROR(check_stage());
  if (failure != 0) return base::errno_error(Code::kIo, fmt::format("renaming {}", folder), failure);
  RETURN_IF_ERROR(base::sync_folder(directory_));
  RETURN_IF_ERROR(point("latest", manifest.step));
  if (manifest.best && manifest.best->kept) RETURN_IF_ERROR(point_to_best(*manifest.best));
  prune(manifest.step);
  return {};
}

Result<void> Store::point(const char* name, int64_t step) const {
  const std::string path = directory_ + "/" + name, text = step_name(step) + "\n";
  if (stage_.empty()) return base::write_file_atomically(path, text);
  auto pointed = base::replace_from(stage_, path, text, /*mode=*/0644, base::Durability::kPowerLoss);
  if (!pointed) RETURN_IF_ERROR(check_stage());
  return pointed;
}

// A run that died between a checkpoint and this file makes up for it with its next checkpoint. One that could not be written is not
// called the best: the one before it still is.
Result<void> Store::point_to_best(const BestLoss& best) const {
  struct stat status {};
  if (this->best() == best.step || ::stat(path_of(best.step).c_str(), &status) != 0) return {};
  return point(kBest, best.step);
}

std::optional<int64_t> Store::best() const {
  constexpr uint64_t kLargestName = 64;
  const auto text = base::read_file(directory_ + "/" + kBest, kLargestName);
  if (!text) return std::nullopt;
  const int64_t step = parse_step_name(std::string_view(*text).substr(0, text->find('\n')));
  struct stat status {};
  if (step < 0 || ::stat(path_of(step).c_str(), &status) != 0) return std::nullopt;
  return step;
}

void Store::prune(int64_t newest) const {
  const auto names = list_folder(directory_);
  const auto complete = steps();
  if (!names || !complete) return;
  const auto spared = best();
  int kept = 0;
  for (int64_t step : *complete) {
    // A step above the newest was passed over when this run resumed, or a later attempt has written it.
    if (step <= newest && ++kept > keep_ && step != spared) remove_checkpoint(step);
  }
  for (const std::string& name : *names) {
    if (name.starts_with("step_") && name.ends_with(kTemporarySuffix)) remove_folder(directory_ + "/" + name);
  }
  if (const auto unfinished = list_folder(stage_); unfinished && !stage_.empty()) {
    for (const std::string& name : *unfinished) {
      if (name.starts_with("step_") || name.starts_with(kCondemnedPrefix)) remove_folder(stage_ + "/" + name);
    }
  }
}

Result<std::vector<int64_t>> Store::steps() const {
  ASSIGN_OR_RETURN(auto names, list_folder(directory_));
  std::vector<int64_t> found;
  for (const std::string& name : names) {
    if (const int64_t step = parse_step_name(name); step >= 0) found.push_back(step);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Result<Manifest> Store::read_manifest(int64_t step) const {
  const std::string path = path_of(step) + "/manifest.json";
  ASSIGN_OR_RETURN(const auto text, base::read_file(path, kLargestManifestBytes));
  auto manifest = parse_manifest(text);
  if (!manifest) return std::move(manifest).error().context(path);
  if (manifest->step != step) {
    return Error(Code::kCorrupt, fmt::format("{}: is the manifest of step {}", path, manifest->step));
  }
  return manifest;
}

}  // namespace shardrun::checkpoint
