#include "runtime/trainer/data/bert_loader.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "runtime/base/counter_random.h"
#include "runtime/plan/model/bert.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

// Makes draws one after the other, each a pure function of the key and its place in the order.
class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  // Returns a uniform draw from [0, count).
  int64_t below(int64_t count) {
    return static_cast<int64_t>(base::random_bits(key_, counter_++) % static_cast<uint64_t>(count));
  }

 private:
  uint64_t key_, counter_ = 0;
};

BertRows row_of(const BertRows& rows, size_t slot, int sequence_length) {
  const auto length = static_cast<size_t>(sequence_length), offset = slot * length;
  return {rows.tokens.subspan(offset, length), rows.targets.subspan(offset, length),
          rows.segments.subspan(offset, length), rows.lengths.subspan(slot, 1),
          rows.next_sentence.subspan(slot, 1)};
}

void check_shapes(const BertRows& rows, int sequence_length) {
  SHARDRUN_CHECK(rows.targets.size() == rows.tokens.size() && rows.segments.size() == rows.tokens.size());
  SHARDRUN_CHECK(rows.lengths.size() * static_cast<size_t>(sequence_length) == rows.tokens.size());
  SHARDRUN_CHECK(rows.next_sentence.size() == rows.lengths.size());
}

}  // namespace

Result<BertLoader> BertLoader::create(Corpus corpus, int sequence_length, uint64_t seed, bool pairs,
                                      const std::string& key) {
  const auto refuse = [&](const std::string& what) {
    return Error(Code::kInvalid, fmt::format("{}: {}", key, what));
  };
  const SpecialTokens& special = corpus.tokenizer().special;
  if (!corpus.packs_documents() || special.mask < 0 || special.begin < 0 || special.end < 0 ||
      special.pad < 0) {
    return refuse(fmt::format(
        "a {} needs token files of its vocabulary; make them with shardrun data --tokenizer PATH/{}",
        pairs ? "BERT" : "RoBERTa", pairs ? "vocab.txt" : "tokenizer.json"));
  }
  if (pairs && corpus.documents() < 2)
    return refuse("one document is too few, because next-sentence pairs take two; add documents");
  const int64_t room = sequence_length - plan::special_tokens(pairs);
  if (room < 2) {
    return refuse(fmt::format("[data] sequence_length = {} leaves no room for two {}; use at least {}",
                              sequence_length, pairs ? "sentences" : "words",
                              plan::special_tokens(pairs) + 2));
  }
  std::vector<int64_t> first_examples{0};
  first_examples.reserve(static_cast<size_t>(corpus.documents()) + 1);
  for (int64_t document = 0; document < corpus.documents(); ++document) {
    const int64_t size = corpus.document_begin(document + 1) - corpus.document_begin(document);
    first_examples.push_back(first_examples.back() + size / room + (size % room >= 2 ? 1 : 0));
  }
  if (first_examples.back() < 1) return refuse("no document has two tokens; add text");
  return BertLoader(std::move(corpus), sequence_length, seed, pairs, std::move(first_examples));
}

BertLoader::Example BertLoader::example(int64_t index, uint64_t key) const {
  const auto after = std::upper_bound(first_examples_.begin(), first_examples_.end(), index);
  const int64_t document = after - first_examples_.begin() - 1;
  const int64_t room = sequence_length_ - plan::special_tokens(pairs_);
  const int64_t begin = corpus_.document_begin(document) + (index - first_examples_[document]) * room;
  const int64_t size = std::min(room, corpus_.document_begin(document + 1) - begin);

  Draws draws(base::random_bits(key, 0));
  if (!pairs_) return {.a_begin = begin, .a_size = size, .key = base::random_bits(key, 1)};
  Example made{.a_begin = begin, .a_size = 1 + draws.below(size - 1), .key = base::random_bits(key, 1)};
  made.b_begin = begin + made.a_size;
  made.b_size = size - made.a_size;
  made.follows = draws.below(2) == 0;
  if (made.follows) return made;
  const int64_t other = (document + 1 + draws.below(corpus_.documents() - 1)) % corpus_.documents();
  const int64_t other_begin = corpus_.document_begin(other);
  const int64_t other_size = corpus_.document_begin(other + 1) - other_begin;
  made.b_size = std::min(made.b_size, other_size);
  made.b_begin = other_begin + draws.below(other_size - made.b_size + 1);
  return made;
}

BertLoader::Example BertLoader::training_example(int64_t position) const {
  const uint64_t key =
      base::random_bits(seed_ ^ base::hash_name("bert training"), static_cast<uint64_t>(position));
  return example(shuffled(seed_, position, sequences()), key);
}

int64_t BertLoader::training_targets(int64_t position, int64_t count) const {
  int64_t total = 0;
  for (int64_t slot = 0; slot < count; ++slot) {
    const Example made = training_example(position + slot);
    total += plan::masked_words(made.a_size + made.b_size);
  }
  return total;
}

Result<void> BertLoader::write_example(const Example& example, const BertRows& row) const {
  const SpecialTokens& special = corpus_.tokenizer().special;
  const auto a_size = static_cast<size_t>(example.a_size), b_size = static_cast<size_t>(example.b_size);
  const size_t b_column = a_size + 2, length = b_column + (pairs_ ? b_size + 1 : 0);
  row.tokens[0] = special.begin;
  RETURN_IF_ERROR(corpus_.read(example.a_begin, row.tokens.subspan(1, a_size)));
  row.tokens[b_column - 1] = special.end;
  if (pairs_) {
    RETURN_IF_ERROR(corpus_.read(example.b_begin, row.tokens.subspan(b_column, b_size)));
    row.tokens[length - 1] = special.end;
  }
  std::fill(row.tokens.begin() + static_cast<std::ptrdiff_t>(length), row.tokens.end(), special.pad);
  for (size_t column = 0; column < row.segments.size(); ++column)
    row.segments[column] = column >= b_column && column < length ? 1 : 0;
  row.lengths[0] = static_cast<int32_t>(length);
  row.next_sentence[0] = !pairs_ ? -1 : example.follows ? 0 : 1;
  mask(example, row);
  return {};
}

void BertLoader::mask(const Example& example, const BertRows& row) const {
  std::fill(row.targets.begin(), row.targets.end(), -1);
  const int64_t candidates = example.a_size + example.b_size;
  std::vector<int32_t> order(candidates);
  std::iota(order.begin(), order.end(), 0);
  Draws draws(example.key);
  for (int64_t chosen = 0; chosen < plan::masked_words(candidates); ++chosen) {
    std::swap(order[chosen], order[chosen + draws.below(candidates - chosen)]);
    const int32_t candidate = order[chosen];
    const auto column = static_cast<size_t>(candidate) + (candidate < example.a_size ? 1 : 2);
    row.targets[column] = row.tokens[column];
    const int64_t fate = draws.below(10);
    const auto drawn = static_cast<int32_t>(draws.below(corpus_.vocabulary()));
    if (fate < 8) row.tokens[column] = corpus_.tokenizer().special.mask;
    if (fate == 8) row.tokens[column] = drawn;
  }
}

// Fills a slot that has no sequence.
void BertLoader::leave_out(const BertRows& row) const {
  std::fill(row.tokens.begin(), row.tokens.end(), corpus_.tokenizer().special.pad);
  std::fill(row.targets.begin(), row.targets.end(), -1);
  std::fill(row.segments.begin(), row.segments.end(), 0);
  row.lengths[0] = sequence_length_;
  row.next_sentence[0] = -1;
}

Result<void> BertLoader::read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                                       int64_t data_parallel_rank, const BertRows& rows) const {
  check_shapes(rows, sequence_length_);
  SHARDRUN_CHECK(rows.lengths.size() == static_cast<size_t>(plan.micro_batch));
  const auto share = plan.share(micro_step, data_parallel_rank);
  for (size_t slot = 0; slot < rows.lengths.size(); ++slot) {
    const BertRows row = row_of(rows, slot, sequence_length_);
    const auto in_share = static_cast<int64_t>(slot);
    if (in_share < share.count) {
      RETURN_IF_ERROR(write_example(training_example(position + share.begin + in_share), row));
    } else {
      leave_out(row);
    }
  }
  return {};
}

Result<void> BertLoader::read_validation(int64_t first_slot, int64_t count, const BertRows& rows) const {
  check_shapes(rows, sequence_length_);
  SHARDRUN_CHECK(count >= 1 && count <= sequences());
  const uint64_t seed = seed_ ^ base::hash_name("bert validation");
  for (size_t i = 0; i < rows.lengths.size(); ++i) {
    const int64_t slot = first_slot + static_cast<int64_t>(i);
    const BertRows row = row_of(rows, i, sequence_length_);
    if (slot < count) {
      const int64_t index = slot * sequences() / count;
      RETURN_IF_ERROR(
          write_example(example(index, base::random_bits(seed, static_cast<uint64_t>(index))), row));
      continue;
    }
    leave_out(row);
  }
  return {};
}

}  // namespace shardrun::data
