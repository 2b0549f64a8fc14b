#include "tests/unit/checkpoint/state.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>

namespace shardrun::checkpoint {
namespace {

namespace fs = std::filesystem;

void append(model::BlockLayout& block, const std::string& name, std::vector<int64_t> full_shape,
            int dimension, int64_t begin, int64_t count) {
  model::ParameterInfo info;
  info.name = block.name + "." + name;
  info.shape = full_shape;
  if (dimension >= 0) {
    info.shape[static_cast<size_t>(dimension)] = count;
    info.full_shape = std::move(full_shape);
    info.split_dimension = dimension;
    info.split_begin = begin;
  }
  info.offset = block.elements;
  block.elements += info.elements();
  block.parameters.push_back(std::move(info));
}

}  // namespace

std::vector<model::BlockLayout> blocks_of(int tensor_rank, int tensor_parallel) {
  const auto cut = [&](int64_t extent, int rank) { return extent * rank / tensor_parallel; };
  const auto split = [&](model::BlockLayout& block, const std::string& name, std::vector<int64_t> shape,
                         int dimension) {
    const int64_t extent = shape[static_cast<size_t>(dimension)], begin = cut(extent, tensor_rank);
    append(block, name, shape, tensor_parallel == 1 ? -1 : dimension, begin,
           cut(extent, tensor_rank + 1) - begin);
  };
  std::vector<model::BlockLayout> blocks(3);
  blocks[0].name = "embedding";
  split(blocks[0], "table", {7, 5}, 0);
  blocks[1].name = "layer";
  append(blocks[1], "norm", {6}, -1, 0, 0);
  split(blocks[1], "q", {8, 6}, 0);
  // This stands for fewer key heads than tensor ranks: neighbours hold the same half.
  append(blocks[1], "k", {4, 6}, tensor_parallel < 2 ? -1 : 0, tensor_rank * 2 / tensor_parallel * 2, 2);
  split(blocks[1], "bias", {9}, 0);
  split(blocks[1], "o", {6, 8}, 1);
  blocks[2].name = "head";
  append(blocks[2], "norm", {6}, -1, 0, 0);
  return blocks;
}

Manifest manifest_of(int64_t step, const Spread& spread) {
  Manifest manifest;
  manifest.step = step;
  manifest.data_position = step * 8;
  manifest.data = {5000, 64, 18446744073709551615ULL};
  manifest.model = R"({"layers":1})";
  manifest.spread = spread;
  std::vector<std::vector<model::BlockLayout>> by_tensor_rank;
  for (int rank = 0; rank < spread.tensor_parallel; ++rank) {
    by_tensor_rank.push_back(blocks_of(rank, spread.tensor_parallel));
  }
  manifest.blocks = describe_blocks(by_tensor_rank);
  return manifest;
}

std::vector<Place> all_places(const Spread& spread) {
  std::vector<Place> places;
  for (int file = 0; file < spread.files(); ++file) places.push_back(place_of(spread, file));
  return places;
}

RankState::RankState(const Place& place, bool fill, float shift)
    : blocks(blocks_of(place.tensor_rank, place.spread.tensor_parallel)), shard_rank(place.shard_rank) {
  std::vector<int64_t> elements;
  for (const model::BlockLayout& block : blocks) elements.push_back(block.elements);
  layout = plan::make_layout(elements, place.spread.shard_degree);
  for (auto* tensor : {&master, &moment1, &moment2}) {
    tensor->assign(static_cast<size_t>(layout.flat_shard_elements), 0.0F);
  }
  for (int b = 0; fill && b < layout.block_count(); ++b) {
    std::vector<float> local;
    const auto& parameters = blocks[static_cast<size_t>(b)].parameters;
    for (size_t t = 0; t < parameters.size(); ++t) {
      const model::ParameterInfo& info = parameters[t];
      const auto& full = info.whole_shape();
      const int64_t columns = full.size() < 2 ? 1 : full[1];
      const int64_t first_row = info.split_dimension == 0 ? info.split_begin : 0;
      const int64_t first_column = info.split_dimension == 1 ? info.split_begin : 0;
      const int64_t width = info.shape.size() < 2 ? 1 : info.shape[1];
      for (int64_t i = 0; i < info.elements(); ++i) {
        const int64_t element = (first_row + i / width) * columns + first_column + i % width;
        local.push_back(static_cast<float>(10000 * b + 1000 * static_cast<int64_t>(t) + element) + shift);
      }
    }
    const auto owned = layout.owned(b, shard_rank);
    for (int64_t i = 0; i < owned.count(); ++i) {
      const auto at = static_cast<size_t>(layout.block(b).shard_offset + i);
      master[at] = local[static_cast<size_t>(owned.begin + i)];
      moment1[at] = master[at] + 0.25F;
      moment2[at] = master[at] + 0.5F;
    }
  }
}

void save(const Store& store, int64_t step, const Spread& spread, float shift) {
  for (const Place& place : all_places(spread)) {
    RankState state(place, /*fill=*/true, shift);
    REQUIRE(store.write_shard(step, place, state.layout, state.view()));
  }
  REQUIRE(store.publish(manifest_of(step, spread)));
}

Result<void> load_rank(const Store& store, int64_t step, const Place& place) {
  RankState state(place, /*fill=*/false);
  const auto manifest = store.read_manifest(step);
  if (!manifest) return manifest.error();
  return store.read_shard(*manifest, state.target(), state.view());
}

}  // namespace shardrun::checkpoint
