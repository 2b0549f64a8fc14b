#include "runtime/trainer/weights/load_weights.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/thread_world.h"
#include "tests/unit/weights/files.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

// The first tensor has more than one piece, so that pieces begin in the middle of a row.
constexpr int64_t kRows = 701, kColumns = 3001;

std::vector<NamedTensor> tensors() {
  return {filled("table", "BF16", {kRows, kColumns}), filled("norm", "F32", {5}), filled("q", "BF16", {8, 6}),
          filled("o", "F32", {6, 8})};
}

void set_slice(model::ParameterInfo& info, int dimension, int rank, int ranks) {
  info.full_shape = info.shape;
  info.split_dimension = dimension;
  int64_t& extent = info.shape[static_cast<size_t>(dimension)];
  info.split_begin = extent * rank / ranks;
  extent = extent * (rank + 1) / ranks - info.split_begin;
}

// Returns the blocks as tensor rank `rank` of `ranks` has them: the table by rows, q by rows, o by columns.
std::vector<model::BlockLayout> blocks_of(int rank, int ranks) {
  std::vector<model::BlockLayout> blocks{block_of("embedding", {{"table", {kRows, kColumns}}}),
                                         block_of("layer", {{"norm", {5}}, {"q", {8, 6}}, {"o", {6, 8}}})};
  if (ranks == 1) return blocks;
  set_slice(blocks[0].parameters[0], 0, rank, ranks);
  set_slice(blocks[1].parameters[1], 0, rank, ranks);
  set_slice(blocks[1].parameters[2], 1, rank, ranks);
  for (model::BlockLayout& block : blocks) {
    block.elements = 0;
    for (model::ParameterInfo& info : block.parameters) {
      info.offset = block.elements;
      block.elements += info.elements();
    }
  }
  return blocks;
}

plan::ShardLayout layout_of(const std::vector<model::BlockLayout>& blocks, int degree) {
  std::vector<int64_t> elements;
  for (const model::BlockLayout& block : blocks) elements.push_back(block.elements);
  return plan::make_layout(elements, degree);
}

// Returns what a rank's flat shard should hold; -1 in the padding.
std::vector<float> wanted(const std::vector<model::BlockLayout>& blocks, const plan::ShardLayout& layout,
                          int rank) {
  std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements), -1.0F);
  for (int b = 0; b < layout.block_count(); ++b) {
    std::vector<float> local;
    for (const model::ParameterInfo& info : blocks[static_cast<size_t>(b)].parameters) {
      const auto& full = info.whole_shape();
      const int64_t columns = full.size() < 2 ? 1 : full[1],
                    width = info.shape.size() < 2 ? 1 : info.shape[1];
      const int64_t row = info.split_dimension == 0 ? info.split_begin : 0;
      const int64_t column = info.split_dimension == 1 ? info.split_begin : 0;
      for (int64_t i = 0; i < info.elements(); ++i) {
        local.push_back(element_of(info.name, (row + i / width) * columns + column + i % width));
      }
    }
    const auto owned = layout.owned(b, rank);
    std::copy_n(local.begin() + owned.begin, owned.count(), master.begin() + layout.block(b).shard_offset);
  }
  return master;
}

}  // namespace

TEST_CASE(
    "loading weights: a piece and a part that have a row in common and no element have nothing in common") {
  constexpr int64_t kWide =
      100003;  // the second piece begins in row 5, and so does the last of three ranks' parts
  constexpr int kRanks = 3;
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  write_file(path, file_bytes({filled("table", "BF16", {8, kWide})}));
  const std::vector<model::BlockLayout> blocks{block_of("embedding", {{"table", {8, kWide}}})};
  const auto layout = layout_of(blocks, kRanks);
  fakes::ThreadWorld world(kRanks);
  std::vector<int64_t> wrong(kRanks, -1);

  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    std::vector<std::byte> frozen(2 * static_cast<size_t>(layout.flat_shard_elements));
    if (!load_frozen(path, blocks, layout, rank, *channels[0], base::DType::kBf16, frozen)) return;
    const auto owned = layout.owned(0, rank);
    wrong[static_cast<size_t>(rank)] = 0;
    for (int64_t i = 0; i < owned.count(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, &frozen[2 * static_cast<size_t>(i)], sizeof(bits));
      const float value = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      wrong[static_cast<size_t>(rank)] += value != element_of("table", owned.begin + i);
    }
  });

  CHECK(wrong == std::vector<int64_t>(kRanks, 0));
}

TEST_CASE("loading weights: every rank of every mesh holds exactly its part of the file") {
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  write_file(path, file_bytes(tensors()));
  struct Mesh {
    int world_size, tensor_parallel;
  };
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{3, 1}, Mesh{2, 2}, Mesh{4, 2}}) {
    fakes::ThreadWorld world(mesh.world_size);
    std::vector<std::vector<float>> masters(static_cast<size_t>(mesh.world_size)), expected = masters;
    std::vector<std::string> errors(static_cast<size_t>(mesh.world_size));

    world.run([&](int rank, std::span<comm::Communicator* const> channels) {
      const auto blocks = blocks_of(rank % mesh.tensor_parallel, mesh.tensor_parallel);
      const auto layout = layout_of(blocks, mesh.world_size / mesh.tensor_parallel);
      const int shard_rank = rank / mesh.tensor_parallel;
      auto& master = masters[static_cast<size_t>(rank)];
      master.assign(static_cast<size_t>(layout.flat_shard_elements), -1.0F);
      const auto loaded = load_weights(path, blocks, layout, shard_rank, *channels[0], master);
      if (!loaded) errors[static_cast<size_t>(rank)] = loaded.error().to_string();
      expected[static_cast<size_t>(rank)] = wanted(blocks, layout, shard_rank);
    });

    for (size_t rank = 0; rank < masters.size(); ++rank) {
      CAPTURE(mesh.world_size);
      CAPTURE(rank);
      CHECK(errors[rank].empty());
      CHECK((masters[rank] == expected[rank]));
    }
  }
}

TEST_CASE("loading weights: files that do not fit are refused alike on every rank, and nothing is written") {
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  auto without_norm = tensors();
  without_norm.erase(without_norm.begin() + 1);
  write_file(path, file_bytes(without_norm));
  for (const std::string& source : {path, folder.path() + "/absent"}) {
    fakes::ThreadWorld world(2);
    std::vector<std::string> errors(2);
    std::vector<base::Code> codes(2);

    world.run([&](int rank, std::span<comm::Communicator* const> channels) {
      const auto blocks = blocks_of(0, 1);
      const auto layout = layout_of(blocks, 2);
      std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements), -1.0F);
      const auto loaded = load_weights(source, blocks, layout, rank, *channels[0], master);
      REQUIRE(!loaded);
      errors[static_cast<size_t>(rank)] = loaded.error().to_string();
      codes[static_cast<size_t>(rank)] = loaded.error().code();
      CHECK((master == std::vector<float>(master.size(), -1.0F)));
    });

    CHECK(errors[0] == errors[1]);
    CHECK(codes[0] == codes[1]);
    CHECK(codes[0] == (source == path ? base::Code::kInvalid : base::Code::kNotFound));
    CHECK(errors[0].find(source == path ? "norm not there" : "/absent") != std::string::npos);
  }
}
