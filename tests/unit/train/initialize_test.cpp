#include "runtime/trainer/train/initialize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace shardrun;
using namespace shardrun::train;

namespace {

std::vector<model::BlockLayout> two_blocks() {
  model::BlockLayout embedding{"embedding", {{"embed.weight", {50, 8}, 0, true, 0.02}}, 400};
  model::BlockLayout layer{
      "layer 0", {{"norm.weight", {8}, 0, false, 0.0}, {"proj.weight", {8, 25}, 8, true, 0.5}}, 208};
  return {embedding, layer};
}

plan::ShardLayout layout_for(int group_size) {
  const std::vector<int64_t> elements{400, 208};
  return plan::make_layout(elements, group_size);
}

// Returns the whole blocks, put together from every rank's shard.
std::vector<float> whole_model(int group_size, uint64_t seed) {
  const auto layout = layout_for(group_size);
  std::vector<float> whole;
  for (int block = 0; block < 2; ++block) {
    for (int rank = 0; rank < group_size; ++rank) {
      std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements), 0.0F);
      initialize_parameters(two_blocks(), layout, rank, seed, master);
      const auto begin = master.begin() + layout.block(block).shard_offset;
      whole.insert(whole.end(), begin, begin + layout.owned(block, rank).count());
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("initialize: every world size starts from the same bits") {
  const auto alone = whole_model(1, 7);

  CHECK(alone.size() == 608);
  for (int group_size : {2, 3, 4, 9}) CHECK(whole_model(group_size, 7) == alone);
}

TEST_CASE("initialize: another seed gives another model, and norms are ones under any seed") {
  const auto seven = whole_model(1, 7), eight = whole_model(1, 8);

  int same = 0;
  for (size_t i = 0; i < seven.size(); ++i) same += seven[i] == eight[i] ? 1 : 0;
  CHECK(same == 8);
  for (size_t i = 400; i < 408; ++i) CHECK(seven[i] == 1.0F);
}

TEST_CASE("initialize: two parameters of the same shape do not get the same values") {
  const auto whole = whole_model(1, 7);

  CHECK(whole[0] / 0.02F != doctest::Approx(whole[408] / 0.5F));
}

TEST_CASE("initialize: mean and standard deviation are those of the parameter") {
  model::BlockLayout block{"big", {{"w", {100, 1000}, 0, true, 0.02}}, 100000};
  const std::vector<int64_t> elements{100000};
  const auto layout = plan::make_layout(elements, 1);
  std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements), 0.0F);

  initialize_parameters(std::span(&block, 1), layout, 0, 3, master);

  double sum = 0.0, squares = 0.0;
  for (float value : master) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  CHECK(std::abs(sum / 1e5) < 0.0003);
  CHECK(std::sqrt(squares / 1e5) == doctest::Approx(0.02).epsilon(0.01));
}

TEST_CASE("update ranges: cover the owned elements once, leave padding out, and decay what the model says") {
  for (int group_size : {1, 2, 5}) {
    const auto layout = layout_for(group_size);
    int64_t decayed = 0, plain = 0;
    for (int rank = 0; rank < group_size; ++rank) {
      int64_t end = 0;
      for (const optim::UpdateRange& range : update_ranges(two_blocks(), layout, rank)) {
        CHECK(range.begin >= end);
        end = range.begin + range.count;
        (range.weight_decay ? decayed : plain) += range.count;
      }
      CHECK(end <= layout.flat_shard_elements);
    }
    CHECK(decayed == 600);
    CHECK(plain == 8);
  }
}
