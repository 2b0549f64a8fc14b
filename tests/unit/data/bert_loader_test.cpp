#include "runtime/trainer/data/bert_loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;
using plan::even_batch;

namespace {

constexpr int32_t kVocabulary = 5000, kPad = 0, kCls = 1, kSep = 2, kMask = 4;

// The memory that a micro-batch is written to.
struct Batch {
  Batch(int64_t micro_batch, int length)
      : tokens(static_cast<size_t>(micro_batch * length), -7),
        targets(tokens.size(), -7),
        segments(tokens.size(), -7),
        lengths(static_cast<size_t>(micro_batch), -7),
        next_sentence(lengths.size(), -7) {}
  BertRows rows() { return {tokens, targets, segments, lengths, next_sentence}; }
  bool operator==(const Batch&) const = default;

  std::vector<int32_t> tokens, targets, segments, lengths, next_sentence;
};

// Returns documents whose ids tell where they stand: consecutive numbers, which begin at another hundred
// in each document.
std::vector<std::vector<int32_t>> counting_documents(const std::vector<int>& sizes) {
  std::vector<std::vector<int32_t>> documents;
  for (size_t i = 0; i < sizes.size(); ++i) {
    documents.emplace_back();
    for (int k = 0; k < sizes[i]; ++k) documents.back().push_back(static_cast<int32_t>(100 * (i + 1)) + k);
  }
  return documents;
}

BertLoader loader_of(const Folder& folder, const std::vector<std::vector<int32_t>>& documents, int length,
                     uint64_t seed = 1, bool pairs = true) {
  const std::vector<std::string> files{token_file(folder, "x.tokens", bert_facts(kVocabulary), documents)};
  auto corpus = Corpus::open(files, "[data] files");
  REQUIRE(corpus);
  auto loader = BertLoader::create(std::move(corpus).value(), length, seed, pairs, "[data] files");
  if (!loader) FAIL(loader.error().to_string());
  return std::move(loader).value();
}

Batch step_of(const BertLoader& loader, int64_t position, int64_t sequences) {
  Batch batch(sequences, loader.sequence_length());
  REQUIRE(loader.read_training(position, even_batch(sequences, 1, 1), 0, 0, batch.rows()));
  return batch;
}

// Returns the row as it was before it was masked.
std::vector<int32_t> unmasked(const Batch& batch, size_t slot, int length) {
  std::vector<int32_t> row;
  for (int column = 0; column < length; ++column) {
    const size_t at = slot * static_cast<size_t>(length) + static_cast<size_t>(column);
    row.push_back(batch.targets[at] >= 0 ? batch.targets[at] : batch.tokens[at]);
  }
  return row;
}

std::vector<std::vector<int32_t>> long_documents(size_t count, int size) {
  std::vector<std::vector<int32_t>> documents(count);
  for (size_t i = 0; i < count; ++i)
    for (int k = 0; k < size; ++k)
      documents[i].push_back(
          5 + static_cast<int32_t>((i * 977 + static_cast<size_t>(k) * 31) % (kVocabulary - 5)));
  return documents;
}

}  // namespace

TEST_CASE("bert loader: a row is [CLS] A [SEP] B [SEP] and padding, with segments and length") {
  const Folder folder;
  constexpr int kLength = 12;
  const BertLoader loader = loader_of(folder, counting_documents({30, 5, 9, 14}), kLength);
  const Batch batch = step_of(loader, 0, 200);
  for (size_t slot = 0; slot < 200; ++slot) {
    const auto row = unmasked(batch, slot, kLength);
    const auto length = static_cast<size_t>(batch.lengths[slot]);
    REQUIRE(length >= 5);
    REQUIRE(length <= kLength);
    CHECK(row[0] == kCls);
    CHECK(row[length - 1] == kSep);
    size_t middle = 1;
    while (row[middle] != kSep) ++middle;
    CHECK(middle >= 2);
    CHECK(middle + 2 < length);
    for (size_t column = 0; column < kLength; ++column) {
      const size_t at = slot * kLength + column;
      CHECK(batch.segments[at] == (column > middle && column < length ? 1 : 0));
      const bool special = column == 0 || column == middle || column >= length - 1;
      CHECK((row[column] >= 100) == !special);
      if (column >= length) CHECK(row[column] == kPad);
      if (special) CHECK(batch.targets[at] == -1);
      // Inside A and inside B the numbers count on.
      if (!special && column > 1 && column != middle + 1) CHECK(row[column] == row[column - 1] + 1);
    }
    const bool follows = row[middle + 1] == row[middle - 1] + 1;
    CHECK(batch.next_sentence[slot] == (follows ? 0 : 1));
    if (!follows) CHECK(row[middle + 1] / 100 != row[middle - 1] / 100);
  }
}

TEST_CASE("bert loader: every chunk of every document is A's once an epoch, in an order of its own") {
  const Folder folder;
  // With T − 3 = 5 there are chunks at 0, 5 and 10 (of 2 tokens); the second document's last token makes none.
  const BertLoader loader = loader_of(folder, counting_documents({12, 6, 1, 3}), 8);
  REQUIRE(loader.sequences() == 5);
  std::vector<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch batch = step_of(loader, epoch * 5, 5);
    orders.emplace_back();
    for (size_t slot = 0; slot < 5; ++slot) orders.back().push_back(unmasked(batch, slot, 8)[1]);
    CHECK(std::set<int32_t>(orders.back().begin(), orders.back().end()) ==
          std::set<int32_t>{100, 105, 110, 200, 400});
  }
  CHECK((orders[0] != orders[1] || orders[1] != orders[2]));
}

TEST_CASE("bert loader: 15 % of the tokens are targets, 80 % of them masked, 10 % replaced, 10 % kept") {
  const Folder folder;
  for (const int length : {128, 512}) {
    const BertLoader loader = loader_of(folder, long_documents(20, 2000), length);
    const Batch batch = step_of(loader, 0, 300);
    double candidates = 0, targets = 0, masked = 0, kept = 0, follows = 0;
    for (size_t at = 0; at < batch.tokens.size(); ++at) {
      if (batch.targets[at] < 0) continue;
      ++targets;
      CHECK(batch.targets[at] >= 5);
      masked += batch.tokens[at] == kMask ? 1 : 0;
      kept += batch.tokens[at] == batch.targets[at] ? 1 : 0;
    }
    for (size_t slot = 0; slot < 300; ++slot) {
      candidates += batch.lengths[slot] - 3;
      follows += batch.next_sentence[slot] == 0 ? 1 : 0;
    }
    CHECK(targets / candidates == doctest::Approx(0.15).epsilon(0.01));
    // The bound is four standard deviations of a share p of n draws.
    const auto near = [&](double share, double p, double n) {
      return std::abs(share - p) < 4 * std::sqrt(p * (1 - p) / n);
    };
    CHECK(near(masked / targets, 0.8, targets));
    CHECK(near(kept / targets, 0.1, targets));
    CHECK(near(follows / 300, 0.5, 300));
  }
}

TEST_CASE("bert loader: every column of a row is masked about equally often") {
  const Folder folder;
  constexpr int kLength = 23;
  const BertLoader loader = loader_of(folder, long_documents(20, 400), kLength);
  constexpr int64_t kRows = 4000;
  const Batch batch = step_of(loader, 0, kRows);
  std::map<int, int> hits;
  for (size_t at = 0; at < batch.targets.size(); ++at)
    if (batch.targets[at] >= 0) ++hits[static_cast<int>(at % kLength)];
  // 3 of 20 candidates are masked; the columns of the ends are always candidates.
  for (const int column : {1, kLength - 2}) {
    CHECK(hits[column] > 0.15 * kRows * 0.85);
    CHECK(hits[column] < 0.15 * kRows * 1.15);
  }
  CHECK(hits.count(0) == 0);
}

TEST_CASE("bert loader: position and seed decide everything, whatever came before and whoever reads") {
  const Folder folder;
  const auto documents = long_documents(9, 333);
  const BertLoader loader = loader_of(folder, documents, 32), again = loader_of(folder, documents, 32),
                   other = loader_of(folder, documents, 32, /*seed=*/2);
  const Batch whole = step_of(loader, 96, 12);

  CHECK(whole == step_of(again, 96, 12));
  CHECK(!(whole == step_of(other, 96, 12)));
  const auto shape = even_batch(2, 3, 2);
  Batch joined(0, 32);
  for (int64_t micro_step = 0; micro_step < 3; ++micro_step) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      Batch part(2, 32);
      REQUIRE(again.read_training(96, shape, micro_step, rank, part.rows()));
      for (auto member :
           {&Batch::tokens, &Batch::targets, &Batch::segments, &Batch::lengths, &Batch::next_sentence})
        (joined.*member).insert((joined.*member).end(), (part.*member).begin(), (part.*member).end());
    }
  }
  CHECK(joined == whole);
}

TEST_CASE("bert loader: another epoch reads the same chunk with another mask") {
  const Folder folder;
  const BertLoader loader = loader_of(folder, long_documents(2, 29), 32);
  REQUIRE(loader.sequences() == 2);

  CHECK(step_of(loader, 0, 2).targets != step_of(loader, 2, 2).targets);
}

TEST_CASE("bert loader: the targets of a step are counted without reading them") {
  const Folder folder;
  const BertLoader loader = loader_of(folder, counting_documents({30, 5, 9, 14, 2, 2, 77}), 16);
  for (int64_t position = 0; position < 40; position += 8) {
    const Batch batch = step_of(loader, position, 8);
    int64_t targets = 0;
    for (const int32_t target : batch.targets) targets += target >= 0 ? 1 : 0;
    CHECK(loader.training_targets(position, 8) == targets);
  }
}

TEST_CASE("bert loader: validation is the same every time and pads beyond its count") {
  const Folder folder;
  const BertLoader loader = loader_of(folder, counting_documents({30, 30}), 8);
  Batch first(4, 8), again(4, 8);

  REQUIRE(loader.read_validation(1, 3, first.rows()));
  REQUIRE(loader.read_validation(1, 3, again.rows()));

  CHECK(first == again);
  CHECK(unmasked(first, 0, 8)[1] == 100 + 4 * 5);
  for (size_t at = 16; at < 32; ++at) CHECK(first.targets[at] == -1);
  CHECK(first.next_sentence[0] >= 0);
  CHECK(first.next_sentence[2] == -1);
  CHECK(first.lengths[3] == 8);
}

TEST_CASE(
    "bert loader: without pairs an example is one chunk of one document, behind one mark and before "
    "another") {
  const Folder folder;
  const BertLoader loader = loader_of(folder, counting_documents({14}), 8, 1, /*pairs=*/false);
  CHECK_EQ(loader.sequences(), 3);
  std::set<std::vector<int32_t>> seen;
  const Batch batch = step_of(loader, 0, 3);
  for (size_t slot = 0; slot < 3; ++slot) {
    const std::vector<int32_t> row = unmasked(batch, slot, 8);
    const auto length = static_cast<size_t>(batch.lengths[slot]);
    CHECK_EQ(row.front(), kCls);
    CHECK_EQ(row[length - 1], kSep);
    CHECK(std::all_of(row.begin() + static_cast<std::ptrdiff_t>(length), row.end(),
                      [](int32_t token) { return token == kPad; }));
    CHECK_EQ(batch.next_sentence[slot], -1);
    seen.insert({row.begin() + 1, row.begin() + static_cast<std::ptrdiff_t>(length) - 1});
  }
  CHECK(std::all_of(batch.segments.begin(), batch.segments.end(),
                    [](int32_t segment) { return segment == 0; }));
  CHECK(seen == std::set<std::vector<int32_t>>{
                    {100, 101, 102, 103, 104, 105}, {106, 107, 108, 109, 110, 111}, {112, 113}});
}

TEST_CASE("bert loader: what cannot be pairs is refused with a mend") {
  const Folder folder;
  const auto refusal = [&](const std::string& path, int length) {
    auto corpus = Corpus::open(std::vector<std::string>{path}, "[data] files");
    REQUIRE(corpus);
    const auto loader =
        BertLoader::create(std::move(corpus).value(), length, 1, /*pairs=*/true, "[data] files");
    REQUIRE(!loader);
    return loader.error().message();
  };
  const TokenizerFacts facts = bert_facts(10);

  CHECK(refusal(folder.file("a.txt", "some text"), 16).find("make them with shardrun data --tokenizer") !=
        std::string::npos);
  CHECK(
      refusal(token_file(folder, "byte", byte_tokenizer_facts(), {{5, 0}, {6, 0}}), 16).find("BERT needs") !=
      std::string::npos);
  CHECK(refusal(token_file(folder, "one", facts, {{5, 6, 7}}), 16).find("add documents") !=
        std::string::npos);
  CHECK(refusal(token_file(folder, "short", facts, {{5}, {6}}), 16).find("no document has two tokens") !=
        std::string::npos);
  CHECK(refusal(token_file(folder, "narrow", facts, {{5, 6}, {6, 7}}), 4).find("use at least 5") !=
        std::string::npos);
}
