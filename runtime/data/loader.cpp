#include "runtime/data/loader.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/counter_random.h"

namespace shardrun::data {

uint64_t permuted_index(uint64_t key, uint64_t index, uint64_t count) {
  SHARDRUN_CHECK(index < count);
  const auto half_bits = std::max<uint64_t>(1, (std::bit_width(count - 1) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (base::random_bits(key + round, right) & mask);
      left = std::exchange(right, mixed);
    }
    index = (left << half_bits) | right;
  } while (index >= count);
  return index;
}

Result<Loader> Loader::create(Corpus corpus, int sequence_length, uint64_t seed, const std::string& key) {
  SHARDRUN_CHECK(sequence_length >= 1);
  const int64_t sequences = (corpus.tokens() - 1) / sequence_length;
  if (sequences < 1) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}: {} tokens are too few for one sequence of {} + 1; add text or lower "
                                   "[data] sequence_length",
                                   key, corpus.tokens(), sequence_length));
  }
  return Loader(std::move(corpus), sequence_length, seed, sequences);
}

int64_t Loader::sequence_at(int64_t position) const {
  const auto epoch = static_cast<uint64_t>(position / sequences_);
  const auto index = static_cast<uint64_t>(position % sequences_);
  const uint64_t key = base::random_bits(seed_, epoch);
  return static_cast<int64_t>(permuted_index(key, index, static_cast<uint64_t>(sequences_)));
}

void Loader::read_sequence(int64_t sequence, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  const int64_t begin = sequence * sequence_length_;
  corpus_.read(begin, tokens);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  corpus_.read(begin + sequence_length_, targets.last(1));
}

void Loader::read_training(int64_t position, const BatchShape& shape, int64_t micro_step,
                           int64_t data_parallel_rank, std::span<int32_t> tokens,
                           std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(sequence_length_);
  SHARDRUN_CHECK(tokens.size() == static_cast<size_t>(shape.micro_batch) * length &&
                 targets.size() == tokens.size());
  const int64_t first =
      position + (micro_step * shape.data_parallel + data_parallel_rank) * shape.micro_batch;
  for (int64_t slot = 0; slot < shape.micro_batch; ++slot) {
    const size_t offset = static_cast<size_t>(slot) * length;
    read_sequence(sequence_at(first + slot), tokens.subspan(offset, length), targets.subspan(offset, length));
  }
}

void Loader::read_validation(int64_t first_slot, int64_t count, std::span<int32_t> tokens,
                             std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(sequence_length_);
  SHARDRUN_CHECK(tokens.size() % length == 0 && targets.size() == tokens.size());
  SHARDRUN_CHECK(count >= 1 && count <= sequences_);
  for (size_t offset = 0; offset < tokens.size(); offset += length) {
    const int64_t slot = first_slot + static_cast<int64_t>(offset / length);
    const auto slot_tokens = tokens.subspan(offset, length), slot_targets = targets.subspan(offset, length);
    if (slot < count) {
      read_sequence(slot * sequences_ / count, slot_tokens, slot_targets);
    } else {
      std::fill(slot_tokens.begin(), slot_tokens.end(), 0);
      std::fill(slot_targets.begin(), slot_targets.end(), -1);
    }
  }
}

}  // namespace shardrun::data
