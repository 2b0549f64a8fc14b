#include "runtime/tools/export_checkpoint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/trainer/weights/weight_files.h"
#include "tests/unit/weights/files.h"

using namespace shardrun;
using namespace shardrun::weights;
namespace fs = std::filesystem;

namespace {

std::vector<model::BlockLayout> blocks() {
  return {block_of("embedding", {{"table", {10, 6}}}),
          block_of("layer", {{"norm", {6}}, {"w", {6, 6}}, {"bias", {7}}})};
}

// Saves a checkpoint of two ranks and returns its manifest.
checkpoint::Manifest save(const checkpoint::Store& store) {
  checkpoint::Manifest manifest;
  manifest.step = 5;
  manifest.data.sequence_length = 32;
  manifest.model = R"({"model_type":"llama"})";
  manifest.spread = {1, 2, 1};
  const auto layouts = blocks();
  manifest.blocks = checkpoint::describe_blocks({&layouts, 1});
  const auto layout = plan::make_layout(std::vector<int64_t>{layouts[0].elements, layouts[1].elements}, 2);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements)), moments(master.size());
    for (int b = 0; b < 2; ++b) {
      const auto owned = layout.owned(b, rank);
      for (const model::ParameterInfo& info : layouts[static_cast<size_t>(b)].parameters) {
        for (int64_t i = 0; i < info.elements(); ++i) {
          const int64_t at = info.offset + i;
          if (at < owned.begin || at >= owned.end) continue;
          master[static_cast<size_t>(layout.block(b).shard_offset + at - owned.begin)] =
              element_of(info.name, i);
        }
      }
    }
    const checkpoint::Place place = checkpoint::place_of(manifest.spread, rank);
    REQUIRE(store.write_shard(5, place, layout, {master, moments, moments}));
  }
  REQUIRE(store.publish(manifest));
  return manifest;
}

void check_tensors(const std::string& folder) {
  const auto files = WeightFiles::open(folder);
  REQUIRE(files);
  REQUIRE(files->check(blocks()));
  for (const model::BlockLayout& block : blocks()) {
    for (const model::ParameterInfo& info : block.parameters) {
      const TensorEntry* entry = files->find(info.name);
      std::vector<std::byte> bytes(entry->end - entry->begin);
      std::vector<float> values(static_cast<size_t>(info.elements()));
      REQUIRE(files->read(*entry, 0, bytes));
      to_fp32(bytes, entry->type, values);
      for (int64_t i = 0; i < info.elements(); ++i) {
        REQUIRE(values[static_cast<size_t>(i)] == element_of(info.name, i));
      }
    }
  }
}

}  // namespace

TEST_CASE("export: one file, or several of bounded size with an index, hold every tensor in its type") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  for (const TensorType type : {TensorType::kF32, TensorType::kBf16}) {
    for (const uint64_t limit : {uint64_t{1} << 30, uint64_t{100}}) {
      const std::string output =
          folder.path() + "/out-" + std::to_string(limit) + (type == TensorType::kF32 ? "a" : "b");

      const auto done = tools::export_checkpoint(store, manifest,
                                                 {.output = output, .type = type, .max_file_bytes = limit});

      REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
      CHECK(done->tensors == 4);
      CHECK(done->tensor_bytes == static_cast<uint64_t>(109 * bytes_per_element(type)));
      CHECK(done->files == (limit > 100 ? 1 : type == TensorType::kF32 ? 4 : 2));
      CHECK(fs::exists(output + "/config.json"));
      CHECK(fs::exists(output + "/model.safetensors") == (limit > 100));
      check_tensors(output);
    }
  }
}

TEST_CASE("export: a damaged checkpoint, a request to stop and a taken name leave nothing behind") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  const std::string output = folder.path() + "/out", shard = store.path_of(5) + "/shard_00001.bin";
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  };

  const auto stopped =
      tools::export_checkpoint(store, manifest, {.output = output, .stop_requested = [] { return true; }});
  std::string bytes = read_back(shard);
  bytes[300] = static_cast<char>(bytes[300] ^ 1);
  write_file(shard, bytes);
  const auto damaged = tools::export_checkpoint(store, manifest, {.output = output});

  CHECK(stopped.error().code() == base::Code::kCancelled);
  CHECK(damaged.error().code() == base::Code::kCorrupt);
  CHECK(damaged.error().message().find(shard) == 0);
  CHECK(entries() == 1);
  fs::create_directory(output);
  write_file(output + "/precious", "");
  CHECK(tools::export_checkpoint(store, manifest, {.output = output}).error().code() == base::Code::kRefused);
  CHECK(fs::exists(output + "/precious"));
}
