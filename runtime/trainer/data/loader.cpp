#include "runtime/trainer/data/loader.h"

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

int64_t shuffled(uint64_t seed, int64_t position, int64_t count) {
  const uint64_t key = base::random_bits(seed, static_cast<uint64_t>(position / count));
  return static_cast<int64_t>(
      permuted_index(key, static_cast<uint64_t>(position % count), static_cast<uint64_t>(count)));
}

namespace {

Rows row_of(const Rows& rows, int64_t slot, int sequence_length) {
  const auto length = static_cast<size_t>(sequence_length), offset = static_cast<size_t>(slot) * length;
  SHARDRUN_CHECK(rows.targets.size() == rows.tokens.size());
  SHARDRUN_CHECK(rows.document_begins.empty() || rows.document_begins.size() == rows.tokens.size());
  return {rows.tokens.subspan(offset, length), rows.targets.subspan(offset, length),
          rows.document_begins.empty() ? rows.document_begins : rows.document_begins.subspan(offset, length)};
}

// Fills a slot that has no sequence.
void leave_out(const Rows& row) {
  std::fill(row.tokens.begin(), row.tokens.end(), 0);
  std::fill(row.targets.begin(), row.targets.end(), -1);
  std::fill(row.document_begins.begin(), row.document_begins.end(), 0);
}

}  // namespace

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

void Loader::mark_documents(int64_t sequence, const Rows& row) const {
  const int64_t begin = sequence * sequence_length_, end = begin + sequence_length_;
  if (!row.document_begins.empty()) std::fill(row.document_begins.begin(), row.document_begins.end(), 0);
  if (!corpus_.packs_documents()) return;
  for (int64_t document = corpus_.document_of(begin) + 1; document < corpus_.documents(); ++document) {
    const int64_t column = corpus_.document_begin(document) - begin;
    if (begin + column > end) return;
    row.targets[static_cast<size_t>(column) - 1] = -1;
    if (row.document_begins.empty()) continue;
    std::fill(row.document_begins.begin() + column, row.document_begins.end(), static_cast<int32_t>(column));
  }
}

Result<void> Loader::read_sequence(int64_t sequence, const Rows& row) const {
  const int64_t begin = sequence * sequence_length_;
  RETURN_IF_ERROR(corpus_.read_marked(begin, row.tokens));
  RETURN_IF_ERROR(corpus_.read_marked(begin + sequence_length_, row.targets.last(1)));
  std::copy(row.tokens.begin() + 1, row.tokens.end(), row.targets.begin());
  for (int32_t& target : row.targets) target = std::max(target, -1);
  for (int32_t& token : row.tokens) token = token < 0 ? ~token : token;
  mark_documents(sequence, row);
  return {};
}

Result<int64_t> Loader::count_targets(int64_t sequence) const {
  if (!corpus_.packs_documents()) return int64_t{sequence_length_};
  const int64_t begin = sequence * sequence_length_, end = begin + sequence_length_;
  if (!corpus_.has_loss_mask()) {
    const int64_t first_tokens = corpus_.document_of(end) - corpus_.document_of(begin);
    return sequence_length_ - first_tokens;
  }
  std::vector<int32_t> tokens(sequence_length_), targets(tokens.size());
  RETURN_IF_ERROR(read_sequence(sequence, {tokens, targets, {}}));
  return static_cast<int64_t>(
      std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; }));
}

Result<int64_t> Loader::training_targets(int64_t position, int64_t count) const {
  int64_t total = 0;
  for (int64_t slot = 0; slot < count; ++slot) {
    ASSIGN_OR_RETURN(const auto targets, count_targets(sequence_at(position + slot)));
    total += targets;
  }
  return total;
}

Result<bool> Loader::validation_has_targets(int64_t count) const {
  for (int64_t slot = 0; slot < count; ++slot) {
    ASSIGN_OR_RETURN(const auto targets, count_targets(slot * sequences_ / count));
    if (targets > 0) return true;
  }
  return false;
}

Result<bool> Loader::has_targets() const {
  constexpr int64_t kMostTokens = int64_t{16} << 20;
  const int64_t looked_at = std::min(sequences_, std::max<int64_t>(1, kMostTokens / sequence_length_));
  for (int64_t sequence = 0; sequence < looked_at; ++sequence) {
    ASSIGN_OR_RETURN(const auto targets, count_targets(sequence));
    if (targets > 0) return true;
  }
  return looked_at < sequences_;
}

Result<void> Loader::read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                                   int64_t data_parallel_rank, const Rows& rows) const {
  SHARDRUN_CHECK(rows.tokens.size() == static_cast<size_t>(plan.micro_batch * sequence_length_));
  const auto share = plan.share(micro_step, data_parallel_rank);
  for (int64_t slot = 0; slot < plan.micro_batch; ++slot) {
    const Rows row = row_of(rows, slot, sequence_length_);
    if (slot < share.count) {
      RETURN_IF_ERROR(read_sequence(sequence_at(position + share.begin + slot), row));
    } else {
      leave_out(row);
    }
  }
  return {};
}

Result<void> Loader::read_validation(int64_t first_slot, int64_t count, const Rows& rows) const {
  const auto length = static_cast<size_t>(sequence_length_);
  SHARDRUN_CHECK(rows.tokens.size() % length == 0);
  SHARDRUN_CHECK(count >= 1 && count <= sequences_);
  for (int64_t i = 0; i < static_cast<int64_t>(rows.tokens.size() / length); ++i) {
    const int64_t slot = first_slot + i;
    const Rows row = row_of(rows, i, sequence_length_);
    if (slot < count) {
      RETURN_IF_ERROR(read_sequence(slot * sequences_ / count, row));
    } else {
      leave_out(row);
    }
  }
  return {};
}

}  // namespace shardrun::data
