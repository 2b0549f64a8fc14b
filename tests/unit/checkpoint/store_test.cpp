#include "runtime/checkpoint/store.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace shardrun;
using namespace shardrun::checkpoint;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "shardrun-store-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::vector<int64_t> kBlocks{5, 130, 64};

// One rank's flat shards with storage. Element e of block b holds 1000·b + e, plus .25 and .5 in the moments.
struct RankState {
  RankState(const shard::ShardLayout& layout, int rank, bool fill) {
    const auto size = static_cast<size_t>(layout.flat_shard_elements);
    for (auto* tensor : {&master, &moment1, &moment2}) tensor->assign(size, 0.0F);
    for (int block = 0; fill && block < layout.block_count(); ++block) {
      const auto owned = layout.owned(block, rank);
      for (int64_t i = 0; i < owned.count(); ++i) {
        const auto at = static_cast<size_t>(layout.block(block).shard_offset + i);
        master[at] = static_cast<float>(1000 * block + owned.begin + i);
        moment1[at] = master[at] + 0.25F;
        moment2[at] = master[at] + 0.5F;
      }
    }
  }
  ShardState view() { return {master, moment1, moment2}; }
  bool operator==(const RankState&) const = default;

  std::vector<float> master, moment1, moment2;
};

Manifest manifest_of(int64_t step, int world_size) {
  Manifest manifest;
  manifest.step = step;
  manifest.data_position = step * 8;
  manifest.world_size = world_size;
  manifest.block_elements = kBlocks;
  return manifest;
}

void save(const Store& store, int64_t step, int world_size) {
  const auto layout = shard::make_layout(kBlocks, world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    RankState state(layout, rank, /*fill=*/true);
    REQUIRE(store.write_shard(step, layout, rank, state.view()));
  }
  REQUIRE(store.publish(manifest_of(step, world_size)));
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

base::Result<void> load_rank(const Store& store, int64_t step, int world_size, int rank) {
  const auto layout = shard::make_layout(kBlocks, world_size);
  RankState state(layout, rank, /*fill=*/false);
  const auto manifest = store.read_manifest(step);
  if (!manifest) return manifest.error();
  return store.read_shard(*manifest, layout, rank, state.view());
}

}  // namespace

TEST_CASE("store: what any world size wrote, any other reads bit for bit") {
  for (int written : {1, 2, 3, 5}) {
    const Folder folder;
    const Store store(folder.path(), 2);
    save(store, 40, written);
    for (int read : {1, 2, 3, 4, 7}) {
      const auto layout = shard::make_layout(kBlocks, read);
      for (int rank = 0; rank < read; ++rank) {
        CAPTURE(written);
        CAPTURE(read);
        CAPTURE(rank);
        RankState loaded(layout, rank, /*fill=*/false);
        const auto manifest = store.read_manifest(40);
        REQUIRE(manifest);
        const auto done = store.read_shard(*manifest, layout, rank, loaded.view());
        REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
        CHECK(loaded == RankState(layout, rank, /*fill=*/true));
      }
    }
  }
}

TEST_CASE("store: keeps the newest, moves latest, and leaves no temporary folder") {
  const Folder folder;
  const Store store(folder.path(), 2);
  fs::create_directory(folder.path() + "/step_00000005.tmp");

  for (int64_t step : {10, 20, 30}) save(store, step, 2);

  const auto steps = store.steps();
  REQUIRE(steps);
  CHECK(*steps == std::vector<int64_t>{30, 20});
  CHECK(slurp(folder.path() + "/latest") == "step_00000030\n");
  CHECK(!fs::exists(folder.path() + "/step_00000005.tmp"));
}

TEST_CASE("store: shards without a publish are not a checkpoint") {
  const Folder folder;
  const Store store(folder.path(), 2);
  const auto layout = shard::make_layout(kBlocks, 1);
  RankState state(layout, 0, /*fill=*/true);
  save(store, 10, 1);

  REQUIRE(store.write_shard(20, layout, 0, state.view()));

  const auto steps = store.steps();
  REQUIRE(steps);
  CHECK(*steps == std::vector<int64_t>{10});
  CHECK(slurp(folder.path() + "/latest") == "step_00000010\n");
}

TEST_CASE("store: publishing without a rank's file names the rank and the shared folder") {
  const Folder folder;
  const Store store(folder.path(), 2);
  const auto layout = shard::make_layout(kBlocks, 2);
  RankState state(layout, 0, /*fill=*/true);
  REQUIRE(store.write_shard(10, layout, 0, state.view()));

  const auto published = store.publish(manifest_of(10, 2));

  REQUIRE(!published);
  CHECK(published.error().code() == base::Code::kNotFound);
  CHECK(published.error().message().find("rank 1 wrote it but it is not here; put [checkpoint] directory") !=
        std::string::npos);
  CHECK(store.steps()->empty());
}

TEST_CASE("store: the same step can be saved again over a damaged one") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, 2);
  spill(store.path_of(10) + "/shard_00000.bin", "torn");
  REQUIRE(!load_rank(store, 10, 2, 0));

  save(store, 10, 2);

  CHECK(load_rank(store, 10, 2, 0));
}

TEST_CASE("store: a flipped bit anywhere in what is read is found, and file and block are named") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, 2);
  const std::string path = store.path_of(10) + "/shard_00001.bin";
  const std::string good = slurp(path);
  const auto header = parse_shard_header(std::as_bytes(std::span(good)));
  REQUIRE(header);
  CHECK(header->file_bytes() == good.size());
  const auto is_padding = [&](size_t at) {
    if (at < header->header_bytes()) return false;
    for (const BlockRecord& block : header->blocks) {
      if (at >= block.file_offset && at < block.file_offset + block.bytes()) return false;
    }
    return true;
  };
  for (size_t at = 0; at < good.size(); at += 7) {
    if (is_padding(at)) continue;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    spill(path, bad);
    const auto loaded = load_rank(store, 10, 2, 1);
    CAPTURE(at);
    REQUIRE(!loaded);
    CHECK(loaded.error().to_string().find("shard_00001.bin") != std::string::npos);
  }
}

TEST_CASE("store: a shard file cut off anywhere is corrupt, and so is a missing one") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, 1);
  const std::string path = store.path_of(10) + "/shard_00000.bin";
  const std::string good = slurp(path);
  for (size_t length = 0; length < good.size(); length += 13) {
    spill(path, good.substr(0, length));
    const auto loaded = load_rank(store, 10, 1, 0);
    CAPTURE(length);
    REQUIRE(!loaded);
    CHECK(loaded.error().code() == base::Code::kCorrupt);
  }
  fs::remove(path);

  const auto missing = load_rank(store, 10, 1, 0);

  REQUIRE(!missing);
  CHECK(missing.error().code() == base::Code::kNotFound);
}

TEST_CASE("store: a shard of another checkpoint does not pass for this one's") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, 2);
  save(store, 20, 2);
  fs::copy_file(store.path_of(10) + "/shard_00001.bin", store.path_of(20) + "/shard_00001.bin",
                fs::copy_options::overwrite_existing);

  const auto loaded = load_rank(store, 20, 2, 1);

  REQUIRE(!loaded);
  CHECK(loaded.error().message().find("does not belong to this checkpoint") != std::string::npos);
}

TEST_CASE("store: a folder that does not exist holds no checkpoints") {
  const Store store("/nonexistent/shardrun", 2);

  const auto steps = store.steps();

  REQUIRE(steps);
  CHECK(steps->empty());
}
