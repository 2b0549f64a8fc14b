#include "runtime/trainer/checkpoint/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "runtime/base/memory.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;
using base::UniqueFd;

Result<void> write_at(int fd, std::span<const std::byte> bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return base::errno_error(Code::kIo, fmt::format("writing {}", path), errno);
    bytes = bytes.subspan(put);
    offset += static_cast<uint64_t>(put);
  }
  return {};
}

}  // namespace

ShardFileWriter::ShardFileWriter(std::string folder, int64_t step, const Place& place,
                                 const plan::ShardLayout& layout, const ShardState& state)
    : folder_(std::move(folder)),
      path_(folder_ + "/" + shard_file_name(place.file())),
      give_back_(state.give_back),
      read_(state.read) {
  SHARDRUN_CHECK(layout.group_size == place.spread.shard_degree);
  header_.file = static_cast<uint32_t>(place.file());
  header_.files = static_cast<uint32_t>(place.spread.files());
  header_.step = static_cast<uint64_t>(step);
  for (int block = 0; block < layout.block_count(); ++block) {
    const plan::ElementRange part = place.part_of(layout.owned(block, place.shard_rank));
    header_.blocks.push_back({static_cast<uint64_t>(layout.block(block).elements),
                              static_cast<uint64_t>(part.begin),
                              static_cast<uint64_t>(part.end),
                              0,
                              {}});
  }
  place_blocks(header_);
  for (int block = 0; block < layout.block_count(); ++block) {
    const auto index = static_cast<size_t>(block);
    const BlockRecord& record = header_.blocks[index];
    if (record.count() == 0) continue;
    const auto begin = static_cast<uint64_t>(layout.owned(block, place.shard_rank).begin);
    const auto first = static_cast<size_t>(layout.block(block).shard_offset) + record.begin - begin;
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      const auto values = state.tensors()[tensor].subspan(first, record.count());
      const uint64_t at = record.file_offset + tensor * record.count() * sizeof(float);
      for (size_t done = 0; done < values.size(); done += kChunkElements) {
        pieces_.push_back({index, tensor,
                           values.subspan(done, std::min(kChunkElements, values.size() - done)),
                           at + done * sizeof(float)});
      }
    }
  }
}

Result<void> ShardFileWriter::open() {
  fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd_) return base::errno_error(Code::kIo, path_, errno);
  return {};
}

std::optional<ShardFileWriter::Chunk> ShardFileWriter::take(std::span<float> buffer) {
  if (all_taken()) return std::nullopt;
  Piece& piece = pieces_[next_];
  const size_t count = std::min(buffer.size(), piece.values.size());
  const Chunk chunk{piece.block, piece.tensor, piece.file_offset, count};
  copy_out(piece.values.first(count), buffer.data());
  if (give_back_ && !is_staged_) give_back_(piece.values.first(count));
  piece.values = piece.values.subspan(count);
  piece.file_offset += count * sizeof(float);
  if (piece.values.empty()) ++next_;
  return chunk;
}

// Staged values lie in host memory.
void ShardFileWriter::copy_out(std::span<const float> values, float* to) {
  if (!read_ || is_staged_) {
    std::copy(values.begin(), values.end(), to);
  } else if (auto read = read_(values, to); !read && !failure_) {
    failure_ = std::move(read).error();
  }
}

std::optional<uint64_t> ShardFileWriter::stage(std::span<float> memory) {
  if (is_staged_) return uint64_t{0};
  struct Part {
    std::span<const float> values;
    float* copy;
  };
  std::vector<Part> parts;  // parts of the pieces from next_ on, equal enough to be divided among threads
  size_t elements = 0;
  for (size_t i = next_; i < pieces_.size(); ++i) {
    const std::span<const float> values = pieces_[i].values;
    if (elements + values.size() > memory.size()) return std::nullopt;
    for (size_t at = 0; at < values.size(); at += kChunkElements) {
      const size_t count = std::min(kChunkElements, values.size() - at);
      parts.push_back({values.subspan(at, count), memory.data() + elements + at});
    }
    elements += values.size();
  }
  if (elements == 0) return uint64_t{0};
  if (read_) {
    for (const Part& part : parts) copy_out(part.values, part.copy);
    parts.clear();
  }
  is_staged_ = true;
  const auto count = static_cast<int64_t>(parts.size());
  // Uses all of the rank's threads: the trainer waits, and they wait with it.
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    base::copy_past_caches(part.values, part.copy);
    if (give_back_) give_back_(part.values);
  }
  const float* copy = memory.data();
  for (size_t i = next_; i < pieces_.size(); ++i) {
    pieces_[i].values = {copy, pieces_[i].values.size()};
    copy += pieces_[i].values.size();
  }
  return uint64_t{elements * sizeof(float)};
}

Result<void> ShardFileWriter::write(const Chunk& chunk, std::span<const float> values) {
  const auto bytes = std::as_bytes(values.first(chunk.elements));
  uint32_t& checksum = header_.blocks[chunk.block].checksums[chunk.tensor];
  checksum = base::crc32c(bytes, checksum);
  return write_at(fd_.get(), bytes, chunk.file_offset, path_);
}

Result<void> ShardFileWriter::finish() {
  SHARDRUN_CHECK(all_taken());
  if (failure_) return *failure_;
  const std::string header = encode(header_);
  RETURN_IF_ERROR(write_at(fd_.get(), std::as_bytes(std::span(header)), 0, path_));
  if (::fsync(fd_.get()) != 0) return base::errno_error(Code::kIo, fmt::format("syncing {}", path_), errno);
  fd_.reset();
  return base::sync_folder(folder_);
}

Result<ShardFileReader> ShardFileReader::open(const std::string& folder, const Manifest& manifest, int file) {
  const std::string path = folder + "/" + shard_file_name(file);
  ASSIGN_OR_RETURN(UniqueFd fd, base::open_to_read(path));
  ShardFileReader reader(path, std::move(fd));
  RETURN_IF_ERROR(reader.read_header(manifest, file));
  return reader;
}

Result<void> ShardFileReader::read_header(const Manifest& manifest, int file) {
  std::vector<std::byte> bytes(ShardHeader::kFixedBytes);
  RETURN_IF_ERROR(base::read_exactly(fd_.get(), bytes, 0, path_));
  const auto length = header_bytes_of(bytes);
  if (!length) return length.error().context(path_);
  bytes.resize(*length);
  RETURN_IF_ERROR(base::read_exactly(fd_.get(), bytes, 0, path_));
  auto header = parse_shard_header(bytes);
  if (!header) return std::move(header).error().context(path_);
  header_ = std::move(*header);
  if (header_.file != static_cast<uint32_t>(file) ||
      header_.files != static_cast<uint32_t>(manifest.spread.files()) ||
      header_.step != static_cast<uint64_t>(manifest.step) ||
      header_.blocks.size() != manifest.blocks.size()) {
    return Error(Code::kCorrupt, fmt::format("{}: does not belong to this checkpoint", path_));
  }
  const Place place = place_of(manifest.spread, file);
  for (size_t b = 0; b < header_.blocks.size(); ++b) {
    const BlockInfo& block = manifest.blocks[b];
    const int64_t elements = block.stage == place.stage ? block.elements(place.tensor_rank) : 0;
    if (header_.blocks[b].elements != static_cast<uint64_t>(elements)) {
      return Error(Code::kCorrupt,
                   fmt::format("{}: block {} has another size than the manifest says", path_, b));
    }
  }
  return {};
}

Result<std::span<const float>> ShardFileReader::read_chunk(size_t block_index, size_t tensor, int64_t done,
                                                           uint32_t& checksum) {
  const BlockRecord& record = block(block_index);
  const size_t left = record.count() - static_cast<size_t>(done);
  buffer_.resize(std::min(left, ShardFileWriter::kChunkElements));
  const uint64_t first = tensor * record.count() + static_cast<uint64_t>(done);
  const auto bytes = std::as_writable_bytes(std::span(buffer_));
  RETURN_IF_ERROR(base::read_exactly(fd_.get(), bytes, record.file_offset + first * sizeof(float), path_));
  checksum = base::crc32c(bytes, checksum);
  return std::span<const float>(buffer_);
}

Result<void> ShardFileReader::check(size_t block_index, size_t tensor, uint32_t checksum) const {
  if (checksum == block(block_index).checksums[tensor]) return {};
  return Error(Code::kCorrupt, fmt::format("{}: block {} does not match its checksum", path_, block_index));
}

}  // namespace shardrun::checkpoint
