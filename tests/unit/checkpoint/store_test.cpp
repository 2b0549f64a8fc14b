#include "runtime/trainer/checkpoint/store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/contract/epoch.h"
#include "tests/unit/checkpoint/state.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using tests::read_back;
using tests::write_file;
namespace fs = std::filesystem;

namespace {

const Spread kOne{1, 1, 1}, kTwo{1, 2, 1};

}  // namespace

TEST_CASE("store: what any spread wrote, any other reads bit for bit") {
  const std::vector<Spread> spreads{{1, 1, 1}, {1, 5, 1}, {1, 2, 2}, {1, 1, 3},
                                    {2, 1, 1}, {2, 2, 2}, {4, 3, 1}, {3, 1, 2}};
  for (const Spread& written : spreads) {
    const Folder folder;
    const Store store(folder.path(), 2);
    save(store, 40, written);
    const auto manifest = store.read_manifest(40);
    REQUIRE(manifest);
    for (const Spread& read : spreads) {
      for (const Place& place : all_places(read)) {
        CAPTURE(written.tensor_parallel);
        CAPTURE(written.shard_degree);
        CAPTURE(written.replicas);
        CAPTURE(read.tensor_parallel);
        CAPTURE(place.file());
        RankState loaded(place, /*fill=*/false);
        const RankState wanted(place, /*fill=*/true);

        const auto done = store.read_shard(*manifest, loaded.target(), loaded.view());

        REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
        CHECK(loaded.master == wanted.master);
        CHECK(loaded.moment1 == wanted.moment1);
        CHECK(loaded.moment2 == wanted.moment2);
      }
    }
  }
}

TEST_CASE("store: a replica that wants its part alone opens no file of another one, and fills nothing else") {
  const Folder folder;
  const Store store(folder.path(), 2);
  const Spread spread{1, 2, 3};
  save(store, 40, spread);
  const auto manifest = store.read_manifest(40);
  REQUIRE(manifest);
  for (const Place& place : all_places(spread)) {
    const Folder lonely;
    fs::copy(folder.path(), lonely.path(), fs::copy_options::recursive);
    for (const Place& other : all_places(spread))
      if (other.file() != place.file())
        fs::remove(lonely.path() + "/step_00000040/" + shard_file_name(other.file()));
    RankState loaded(place, /*fill=*/false);
    const RankState wanted(place, /*fill=*/true), untouched(place, /*fill=*/false);
    LoadTarget target = loaded.target();
    target.replica_rank = place.replica_rank;
    target.replicas = spread.replicas;

    const auto done = Store(lonely.path(), 2).read_shard(*manifest, target, loaded.view());

    REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
    for (int block = 0; block < loaded.layout.block_count(); ++block) {
      const auto owned = loaded.layout.owned(block, place.shard_rank);
      const auto part = place.part_of({0, owned.count()});
      for (int64_t at = 0; at < owned.count(); ++at) {
        const auto index = static_cast<size_t>(loaded.layout.block(block).shard_offset + at);
        const bool mine = part.begin <= at && at < part.end;
        CHECK(loaded.moment2[index] == (mine ? wanted : untouched).moment2[index]);
      }
    }
  }
}

TEST_CASE("store: a whole block is put together from the slices of all files") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 40, {2, 3, 2});
  const auto manifest = store.read_manifest(40);
  REQUIRE(manifest);
  RankState whole(place_of(kOne, 0), /*fill=*/true);
  for (int block = 0; block < whole.layout.block_count(); ++block) {
    std::vector<float> full(
        static_cast<size_t>(manifest->blocks[static_cast<size_t>(block)].full_elements()));

    REQUIRE(store.read_block(*manifest, block, full));

    const auto begin = whole.master.begin() + whole.layout.block(block).shard_offset;
    CHECK(std::equal(full.begin(), full.end(), begin));
  }
}

TEST_CASE("store: a checkpoint with other tensors is refused by name") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 40, kOne);
  const auto manifest = store.read_manifest(40);
  REQUIRE(manifest);
  RankState state(place_of(kOne, 0), /*fill=*/false);
  state.blocks[1].parameters[1].name = "layer.query";

  const auto loaded = store.read_shard(*manifest, state.target(), state.view());

  REQUIRE(!loaded);
  CHECK(loaded.error().code() == base::Code::kInvalid);
  CHECK(loaded.error().message() ==
        "the checkpoint has layer.q where layer.query is wanted, or of another shape");
}

TEST_CASE("store: keeps the newest, moves latest, and leaves no temporary folder") {
  const Folder folder;
  const Store store(folder.path(), 2);
  fs::create_directory(folder.path() + "/step_00000005.tmp");

  for (int64_t step : {10, 20, 30}) save(store, step, kTwo);

  const auto steps = store.steps();
  REQUIRE(steps);
  CHECK(*steps == std::vector<int64_t>{30, 20});
  CHECK(read_back(folder.path() + "/latest") == "step_00000030\n");
  CHECK(!fs::exists(folder.path() + "/step_00000005.tmp"));
}

TEST_CASE("store: the best checkpoint outlives newer ones, until another is the best") {
  const Folder folder;
  const Store store(folder.path(), 1);
  const auto save_as = [&](int64_t step, int64_t best, bool kept) {
    for (const Place& place : all_places(kOne)) {
      RankState state(place, /*fill=*/true);
      REQUIRE(store.write_shard(step, place, state.layout, state.view()));
    }
    Manifest manifest = manifest_of(step, kOne);
    manifest.best = BestLoss{.step = best, .loss = 1.5, .evaluated_step = step, .kept = kept};
    REQUIRE(store.publish(manifest));
  };
  CHECK(!store.best());
  for (const int64_t step : {10, 20, 30}) save_as(step, 10, true);
  CHECK(*store.steps() == std::vector<int64_t>{30, 10});
  CHECK(read_back(folder.path() + "/best") == "step_00000010\n");
  CHECK(read_back(folder.path() + "/latest") == "step_00000030\n");

  save_as(40, 35, true);  // that of 35 could not be written: the best that there is stays
  CHECK(*store.steps() == std::vector<int64_t>{40, 10});
  CHECK(store.best() == 10);

  fs::remove(folder.path() + "/best");  // as if the writer had died before it
  save_as(50, 40, true);
  CHECK(*store.steps() == std::vector<int64_t>{50, 40});
  CHECK(store.best() == 40);

  for (const int64_t step : {60, 70}) save_as(step, 60, false);  // a run that does not keep its best
  CHECK(*store.steps() == std::vector<int64_t>{70, 40});
}

TEST_CASE("store: a save removes no checkpoint of a later step") {
  const Folder folder;
  const Store store(folder.path(), 2);
  for (int64_t step : {300, 400}) save(store, step, kOne);

  for (int64_t step : {310, 320, 330}) save(store, step, kOne);

  CHECK(*store.steps() == std::vector<int64_t>{400, 330, 320});
}

TEST_CASE("store: an attempt that another has replaced publishes nothing, and harms nothing that is there") {
  const Folder folder;
  REQUIRE(contract::fence_checkpoints({folder.path()}, folder.path(), "7", 0));
  const Store old(folder.path(), 2, contract::checkpoint_stage(folder.path(), "7", 0), 0);
  save(old, 10, kTwo);
  CHECK(old.read_manifest(10)->epoch == 0);
  RankState state(place_of(kOne, 0), /*fill=*/true);
  REQUIRE(old.write_shard(20, place_of(kOne, 0), state.layout, state.view()));  // not published yet

  REQUIRE(contract::fence_checkpoints({folder.path()}, folder.path(), "7", 1));
  const Store fresh(folder.path(), 2, contract::checkpoint_stage(folder.path(), "7", 1), 1);
  save(fresh, 20, kTwo);
  const std::string manifest = read_back(folder.path() + "/step_00000020/manifest.json");
  const auto refused_to_publish = old.publish(*old.read_manifest(20));
  const auto refused_to_write = old.write_shard(30, place_of(kOne, 0), state.layout, state.view());

  REQUIRE(!refused_to_publish);
  CHECK(refused_to_publish.error().code() == base::Code::kRefused);
  REQUIRE(!refused_to_write);
  CHECK(refused_to_write.error().code() == base::Code::kRefused);
  CHECK(*fresh.steps() == std::vector<int64_t>{20, 10});
  CHECK(read_back(folder.path() + "/step_00000020/manifest.json") == manifest);
  CHECK(fresh.read_manifest(20)->epoch == 1);
  CHECK(read_back(folder.path() + "/latest") == "step_00000020\n");
}

TEST_CASE("store: an attempt that comes late has no stage, and leaves that of a later attempt alone") {
  const Folder run, folder;
  REQUIRE(contract::make_attempt({run.path()}, 0));
  REQUIRE(contract::make_attempt({run.path()}, 1));
  REQUIRE(contract::fence_checkpoints({run.path()}, folder.path(), "7", 1));

  const auto late = contract::fence_checkpoints({run.path()}, folder.path(), "7", 0);

  REQUIRE(!late);
  CHECK(late.error().code() == base::Code::kRefused);
  CHECK(!fs::exists(contract::checkpoint_stage(folder.path(), "7", 0)));
  save(Store(folder.path(), 2, contract::checkpoint_stage(folder.path(), "7", 1), 1), 10, kOne);
}

TEST_CASE("store: what a fence had not yet removed when its conductor died is gone after the next") {
  const Folder run, folder;
  const fs::path half_removed = folder.path() + "/.fenced.writing_7_0";
  fs::create_directories(half_removed / "step_00000010");
  write_file((half_removed / "step_00000010/shard_00000.bin").string(),
             "of an attempt that may still have its handle");
  REQUIRE(contract::make_attempt({run.path()}, 1));

  REQUIRE(contract::fence_checkpoints({run.path()}, folder.path(), "7", 1));

  CHECK(!fs::exists(half_removed));
}

TEST_CASE("store: a stage that another run of the same name left, with a larger number, keeps nobody out") {
  const Folder run, folder;
  fs::create_directory(contract::checkpoint_stage(folder.path(), "7", 5));
  REQUIRE(contract::make_attempt({run.path()}, 0));

  REQUIRE(contract::fence_checkpoints({run.path()}, folder.path(), "7", 0));

  CHECK(!fs::exists(contract::checkpoint_stage(folder.path(), "7", 5)));
  CHECK(fs::exists(contract::checkpoint_stage(folder.path(), "7", 0)));
}

TEST_CASE("store: saving the same step again replaces it") {
  const Folder folder;
  REQUIRE(contract::fence_checkpoints({folder.path()}, folder.path(), "7", 3));
  const Store store(folder.path(), 2, contract::checkpoint_stage(folder.path(), "7", 3), 3);
  save(store, 10, kOne);
  save(store, 10, kTwo);
  CHECK(store.read_manifest(10)->spread.shard_degree == 2);
  CHECK(*store.steps() == std::vector<int64_t>{10});
}

TEST_CASE("store: shards without a publish are not a checkpoint") {
  const Folder folder;
  const Store store(folder.path(), 2);
  RankState state(place_of(kOne, 0), /*fill=*/true);
  save(store, 10, kOne);

  REQUIRE(store.write_shard(20, place_of(kOne, 0), state.layout, state.view()));

  const auto steps = store.steps();
  REQUIRE(steps);
  CHECK(*steps == std::vector<int64_t>{10});
  CHECK(read_back(folder.path() + "/latest") == "step_00000010\n");
}

TEST_CASE("store: publishing without a rank's file names the rank and the shared folder") {
  const Folder folder;
  const Store store(folder.path(), 2);
  RankState state(place_of(kTwo, 0), /*fill=*/true);
  REQUIRE(store.write_shard(10, place_of(kTwo, 0), state.layout, state.view()));

  const auto published = store.publish(manifest_of(10, kTwo));

  REQUIRE(!published);
  CHECK(published.error().code() == base::Code::kNotFound);
  CHECK(published.error().message().find("rank 1 wrote it but it is not here; put [checkpoint] directory") !=
        std::string::npos);
  CHECK(store.steps()->empty());
}

TEST_CASE("store: the same step can be saved again over a damaged one") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, kTwo);
  write_file(store.path_of(10) + "/shard_00000.bin", "torn");
  REQUIRE(!load_rank(store, 10, place_of(kTwo, 0)));

  save(store, 10, kTwo);

  CHECK(load_rank(store, 10, place_of(kTwo, 0)));
}

TEST_CASE("store: a flipped bit anywhere in what is read is found, and file and block are named") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, kTwo);
  const std::string path = store.path_of(10) + "/shard_00001.bin";
  const std::string good = read_back(path);
  const auto header = parse_shard_header(std::as_bytes(std::span(good)));
  REQUIRE(header);
  uint64_t end = header->header_bytes();
  for (const BlockRecord& block : header->blocks)
    if (block.count() > 0) end = block.file_offset + block.bytes();
  CHECK(end == good.size());
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
    write_file(path, bad);
    const auto loaded = load_rank(store, 10, place_of(kTwo, 1));
    CAPTURE(at);
    REQUIRE(!loaded);
    CHECK(loaded.error().to_string().find("shard_00001.bin") != std::string::npos);
  }
}

TEST_CASE("store: a shard file cut off anywhere is corrupt, and so is a missing one") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, kOne);
  const std::string path = store.path_of(10) + "/shard_00000.bin";
  const std::string good = read_back(path);
  for (size_t length = 0; length < good.size(); length += 13) {
    write_file(path, good.substr(0, length));
    const auto loaded = load_rank(store, 10, place_of(kOne, 0));
    CAPTURE(length);
    REQUIRE(!loaded);
    CHECK(loaded.error().code() == base::Code::kCorrupt);
  }
  fs::remove(path);

  const auto missing = load_rank(store, 10, place_of(kOne, 0));

  REQUIRE(!missing);
  CHECK(missing.error().code() == base::Code::kNotFound);
}

TEST_CASE("store: a shard of another checkpoint does not pass for this one's") {
  const Folder folder;
  const Store store(folder.path(), 2);
  save(store, 10, kTwo);
  save(store, 20, kTwo);
  fs::copy_file(store.path_of(10) + "/shard_00001.bin", store.path_of(20) + "/shard_00001.bin",
                fs::copy_options::overwrite_existing);

  const auto loaded = load_rank(store, 20, place_of(kTwo, 1));

  REQUIRE(!loaded);
  CHECK(loaded.error().message().find("does not belong to this checkpoint") != std::string::npos);
}

TEST_CASE("store: a folder that does not exist holds no checkpoints") {
  const Store store("/nonexistent/shardrun", 2);

  const auto steps = store.steps();

  REQUIRE(steps);
  CHECK(steps->empty());
}
