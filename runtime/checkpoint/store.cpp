#include "runtime/checkpoint/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;
using base::UniqueFd;
using shard::ElementRange;
using shard::ShardLayout;

constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr uint64_t kLargestManifestBytes = 64 << 20;

std::array<std::span<float>, 3> tensors_of(const ShardState& state) {
  return {state.master, state.moment1, state.moment2};
}

Result<void> sync_folder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return base::errno_error(Code::kIo, path, errno);
  // Some network file systems refuse fsync on folders with EINVAL; they commit names with the file.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return base::errno_error(Code::kIo, path, errno);
  return {};
}

Result<void> read_exactly(int fd, std::span<std::byte> out, uint64_t offset, const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::errno_error(Code::kIo, fmt::format("reading {}", path), errno);
    if (got == 0) return Error(Code::kCorrupt, fmt::format("{}: is cut off at byte {}", path, offset));
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

std::span<float> part_of(std::span<float> flat, const shard::BlockShards& shards, int64_t count) {
  return flat.subspan(static_cast<size_t>(shards.shard_offset), static_cast<size_t>(count));
}

// Names in a folder; empty when it does not exist.
Result<std::vector<std::string>> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr && errno == ENOENT) return names;
  if (folder == nullptr) return base::errno_error(Code::kIo, path, errno);
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  ::closedir(folder);
  return names;
}

void remove_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Takes the name of a complete checkpoint away first: whoever dies half-way leaves a .tmp folder, not a ruin.
void remove_checkpoint(const std::string& path) {
  const std::string condemned = path + ".old" + std::string(kTemporarySuffix);
  remove_folder(condemned);
  if (::rename(path.c_str(), condemned.c_str()) == 0) remove_folder(condemned);
}

}  // namespace

Result<void> Store::write_shard(int64_t step, const ShardLayout& layout, int rank,
                                const ShardState& state) const {
  const std::string folder = path_of(step) + std::string(kTemporarySuffix);
  const std::string path = folder + "/" + shard_file_name(rank);
  RETURN_IF_ERROR(base::make_directories(folder));
  ShardHeader header;
  header.rank = static_cast<uint32_t>(rank);
  header.world_size = static_cast<uint32_t>(layout.group_size);
  header.step = static_cast<uint64_t>(step);
  for (int block = 0; block < layout.block_count(); ++block) {
    const ElementRange owned = layout.owned(block, rank);
    BlockRecord record;
    record.elements = static_cast<uint64_t>(layout.block(block).elements);
    record.begin = static_cast<uint64_t>(owned.begin);
    record.end = static_cast<uint64_t>(owned.end);
    record.master_crc =
        base::crc32c(std::as_bytes(part_of(state.master, layout.block(block), owned.count())));
    record.moment1_crc =
        base::crc32c(std::as_bytes(part_of(state.moment1, layout.block(block), owned.count())));
    record.moment2_crc =
        base::crc32c(std::as_bytes(part_of(state.moment2, layout.block(block), owned.count())));
    header.blocks.push_back(record);
  }
  place_blocks(header);

  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return base::errno_error(Code::kIo, path, errno);
  RETURN_IF_ERROR(base::write_all(fd.get(), encode(header), path));
  uint64_t position = header.header_bytes();
  for (int block = 0; block < layout.block_count(); ++block) {
    const BlockRecord& record = header.blocks[static_cast<size_t>(block)];
    if (record.count() == 0) continue;
    RETURN_IF_ERROR(base::write_all(fd.get(), std::string(record.file_offset - position, '\0'), path));
    for (std::span<float> tensor : tensors_of(state)) {
      const auto part = part_of(tensor, layout.block(block), static_cast<int64_t>(record.count()));
      RETURN_IF_ERROR(base::write_all(fd.get(), std::as_bytes(part), path));
    }
    position = record.file_offset + record.bytes();
  }
  if (::fsync(fd.get()) != 0) return base::errno_error(Code::kIo, fmt::format("syncing {}", path), errno);
  return sync_folder(folder);
}

Result<void> Store::publish(const Manifest& manifest) const {
  const std::string final_path = path_of(manifest.step);
  const std::string folder = final_path + std::string(kTemporarySuffix);
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    const std::string path = folder + "/" + shard_file_name(rank);
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      return Error(Code::kNotFound, fmt::format("{}: rank {} wrote it but it is not here; put [checkpoint] "
                                                "directory on a file system that all nodes share",
                                                path, rank));
    }
  }
  RETURN_IF_ERROR(base::write_file_atomically(folder + "/manifest.json", to_json(manifest)));
  RETURN_IF_ERROR(sync_folder(folder));
  remove_checkpoint(final_path);
  if (::rename(folder.c_str(), final_path.c_str()) != 0) {
    return base::errno_error(Code::kIo, fmt::format("renaming {}", folder), errno);
  }
  RETURN_IF_ERROR(sync_folder(directory_));
  RETURN_IF_ERROR(base::write_file_atomically(directory_ + "/latest", step_name(manifest.step) + "\n"));
  prune(manifest.step);
  return {};
}

void Store::prune(int64_t newest) const {
  const auto names = list_folder(directory_);
  const auto complete = steps();
  if (!names || !complete) return;
  int kept = 0;
  for (int64_t step : *complete) {
    // A larger step than the newest was passed over when this run resumed, so it is no use to keep it.
    if (step <= newest && kept++ < keep_) continue;
    remove_checkpoint(path_of(step));
  }
  for (const std::string& name : *names) {
    if (name.starts_with("step_") && name.ends_with(kTemporarySuffix)) remove_folder(directory_ + "/" + name);
  }
}

Result<std::vector<int64_t>> Store::steps() const {
  auto names = list_folder(directory_);
  if (!names) return std::move(names).error();
  std::vector<int64_t> found;
  for (const std::string& name : *names) {
    if (const int64_t step = parse_step_name(name); step >= 0) found.push_back(step);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Result<Manifest> Store::read_manifest(int64_t step) const {
  const std::string path = path_of(step) + "/manifest.json";
  const auto text = base::read_file(path, kLargestManifestBytes);
  if (!text) return text.error();
  auto manifest = parse_manifest(*text);
  if (!manifest) return std::move(manifest).error().context(path);
  if (manifest->step != step) {
    return Error(Code::kCorrupt, fmt::format("{}: is the manifest of step {}", path, manifest->step));
  }
  return manifest;
}

Result<void> Store::read_file_of(const Manifest& manifest, int file_rank, const ShardLayout& layout, int rank,
                                 const ShardState& state, std::vector<int64_t>& filled) const {
  const std::string path = path_of(manifest.step) + "/" + shard_file_name(file_rank);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return base::errno_error(errno == ENOENT ? Code::kNotFound : Code::kIo, path, errno);
  std::vector<std::byte> bytes(ShardHeader::kFixedBytes);
  RETURN_IF_ERROR(read_exactly(fd.get(), bytes, 0, path));
  const auto length = header_bytes_of(bytes);
  if (!length) return length.error().context(path);
  bytes.resize(*length);
  RETURN_IF_ERROR(read_exactly(fd.get(), bytes, 0, path));
  auto header = parse_shard_header(bytes);
  if (!header) return std::move(header).error().context(path);
  if (header->rank != static_cast<uint32_t>(file_rank) ||
      header->world_size != static_cast<uint32_t>(manifest.world_size) ||
      header->step != static_cast<uint64_t>(manifest.step) ||
      header->blocks.size() != static_cast<size_t>(layout.block_count())) {
    return Error(Code::kCorrupt, fmt::format("{}: does not belong to this checkpoint", path));
  }
  std::vector<float> values;
  for (int block = 0; block < layout.block_count(); ++block) {
    const BlockRecord& record = header->blocks[static_cast<size_t>(block)];
    const shard::BlockShards& shards = layout.block(block);
    const ElementRange owned = layout.owned(block, rank);
    const ElementRange stored{static_cast<int64_t>(record.begin), static_cast<int64_t>(record.end)};
    const ElementRange wanted{std::max(owned.begin, stored.begin), std::min(owned.end, stored.end)};
    if (record.elements != static_cast<uint64_t>(shards.elements)) {
      return Error(Code::kCorrupt,
                   fmt::format("{}: block {} has another size than the manifest says", path, block));
    }
    if (wanted.count() <= 0) continue;
    const uint32_t checksums[] = {record.master_crc, record.moment1_crc, record.moment2_crc};
    values.resize(record.count());
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      const auto raw = std::as_writable_bytes(std::span(values));
      RETURN_IF_ERROR(read_exactly(fd.get(), raw, record.file_offset + tensor * raw.size(), path));
      if (base::crc32c(raw) != checksums[tensor]) {
        return Error(Code::kCorrupt, fmt::format("{}: block {} does not match its checksum", path, block));
      }
      std::copy_n(values.begin() + (wanted.begin - stored.begin), wanted.count(),
                  tensors_of(state)[tensor].begin() + shards.shard_offset + (wanted.begin - owned.begin));
    }
    filled[static_cast<size_t>(block)] += wanted.count();
  }
  return {};
}

Result<void> Store::read_shard(const Manifest& manifest, const ShardLayout& layout, int rank,
                               const ShardState& state) const {
  const ShardLayout written = shard::make_layout(manifest.block_elements, manifest.world_size);
  std::vector<int64_t> filled(static_cast<size_t>(layout.block_count()), 0);
  for (int file_rank = 0; file_rank < manifest.world_size; ++file_rank) {
    bool overlaps = false;
    for (int block = 0; block < layout.block_count(); ++block) {
      const ElementRange mine = layout.owned(block, rank), theirs = written.owned(block, file_rank);
      overlaps = overlaps || std::max(mine.begin, theirs.begin) < std::min(mine.end, theirs.end);
    }
    if (overlaps) RETURN_IF_ERROR(read_file_of(manifest, file_rank, layout, rank, state, filled));
  }
  for (int block = 0; block < layout.block_count(); ++block) {
    if (filled[static_cast<size_t>(block)] != layout.owned(block, rank).count()) {
      return Error(Code::kCorrupt,
                   fmt::format("{}: the shard files do not cover block {}", path_of(manifest.step), block));
    }
  }
  return {};
}

}  // namespace shardrun::checkpoint
