#include "runtime/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

using namespace shardrun;
using namespace shardrun::data;

namespace {

// A folder of its own that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardrun-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }
  std::string missing(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

Corpus corpus_of(const std::vector<std::string>& paths) {
  auto corpus = Corpus::open(paths, "[data] files");
  REQUIRE(corpus);
  return std::move(corpus).value();
}

Loader loader_of(const Folder& folder, const std::string& text, int sequence_length, uint64_t seed = 1) {
  auto loader = Loader::create(corpus_of({folder.file("text", text)}), sequence_length, seed, "[data] files");
  REQUIRE(loader);
  return std::move(loader).value();
}

}  // namespace

TEST_CASE("corpus: files follow one another with a separator token 0 after each") {
  const Folder folder;
  const Corpus corpus = corpus_of({folder.file("a", "ab"), folder.file("b", "\xff")});
  std::vector<int32_t> tokens(5);

  REQUIRE(corpus.read(0, tokens));

  CHECK(corpus.tokens() == 5);
  CHECK(tokens == std::vector<int32_t>{'a', 'b', 0, 255, 0});
}

TEST_CASE("corpus: a read may begin and end anywhere") {
  const Folder folder;
  const Corpus corpus = corpus_of({folder.file("a", "abc"), folder.file("b", "de"), folder.file("c", "f")});
  const std::vector<int32_t> whole{'a', 'b', 'c', 0, 'd', 'e', 0, 'f', 0};
  for (size_t begin = 0; begin < whole.size(); ++begin) {
    for (size_t end = begin; end <= whole.size(); ++end) {
      std::vector<int32_t> tokens(end - begin);
      REQUIRE(corpus.read(static_cast<int64_t>(begin), tokens));
      CHECK(std::equal(tokens.begin(), tokens.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

TEST_CASE("corpus: the entropy of two equally frequent letters is ln 2") {
  const Folder folder;

  CHECK(corpus_of({folder.file("a", "abab")}).unigram_entropy() == doctest::Approx(std::log(2.0)));
}

TEST_CASE("corpus: missing, empty and odd files are refused by name with a mend") {
  const Folder folder;
  const std::vector<std::string> missing{folder.missing("nowhere.txt")}, empty{folder.file("empty.txt", "")},
      device{"/dev/null"}, none;

  const auto from_missing = Corpus::open(missing, "[data] files");
  const auto from_empty = Corpus::open(empty, "[data] validation");
  const auto from_device = Corpus::open(device, "[data] files");
  const auto from_none = Corpus::open(none, "[data] files");

  REQUIRE(!from_missing);
  CHECK(from_missing.error().code() == base::Code::kNotFound);
  CHECK(from_missing.error().to_string().find("nowhere.txt does not exist on this node; name a text file") !=
        std::string::npos);
  REQUIRE(!from_empty);
  CHECK(from_empty.error().code() == base::Code::kInvalid);
  CHECK(from_empty.error().to_string().find("[data] validation: ") == 0);
  CHECK(from_empty.error().to_string().find("empty.txt is empty; remove it") != std::string::npos);
  REQUIRE(!from_device);
  CHECK(from_device.error().to_string().find("not a plain file") != std::string::npos);
  REQUIRE(!from_none);
}

TEST_CASE("loader: a corpus shorter than one sequence is refused with both mends") {
  const Folder folder;
  const std::string path = folder.file("short", "abc");

  const auto loader = Loader::create(corpus_of({path}), 8, 1, "[data] files");

  REQUIRE(!loader);
  CHECK(loader.error().code() == base::Code::kInvalid);
  CHECK(loader.error().message() ==
        "[data] files: 4 tokens are too few for one sequence of 8 + 1; add text or lower [data] "
        "sequence_length");
}

TEST_CASE("loader: a corpus of exactly one sequence and its target is enough") {
  const Folder folder;

  CHECK(loader_of(folder, "abcd", 4).sequences() == 1);
}

TEST_CASE("permutation: every index is hit exactly once, for every size") {
  for (uint64_t count : {1ULL, 2ULL, 3ULL, 5ULL, 16ULL, 17ULL, 1000ULL, 4097ULL}) {
    std::set<uint64_t> seen;
    for (uint64_t index = 0; index < count; ++index) {
      const uint64_t to = permuted_index(/*key=*/99, index, count);
      CHECK(to < count);
      seen.insert(to);
    }
    CHECK(seen.size() == count);
  }
}

TEST_CASE("permutation: another key gives another order, and no order is nearly sorted") {
  constexpr uint64_t kCount = 1000;
  int same = 0, fixed = 0, ascending = 0;
  for (uint64_t index = 0; index < kCount; ++index) {
    const uint64_t to = permuted_index(1, index, kCount);
    same += to == permuted_index(2, index, kCount) ? 1 : 0;
    fixed += to == index ? 1 : 0;
    ascending += index > 0 && to > permuted_index(1, index - 1, kCount) ? 1 : 0;
  }

  CHECK(same < 10);
  CHECK(fixed < 10);
  CHECK(ascending > 430);
  CHECK(ascending < 570);
}

TEST_CASE("loader: each epoch reads every sequence once, in another order") {
  const Folder folder;
  const Loader loader = loader_of(folder, std::string(100, 'x'), 4);
  REQUIRE(loader.sequences() == 25);
  std::vector<std::vector<int64_t>> orders(3);
  for (int64_t position = 0; position < 75; ++position) {
    orders[static_cast<size_t>(position / 25)].push_back(loader.sequence_at(position));
  }

  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  for (std::vector<int64_t>& order : orders) {
    std::sort(order.begin(), order.end());
    std::vector<int64_t> every(25);
    std::iota(every.begin(), every.end(), 0);
    CHECK(order == every);
  }
}

TEST_CASE("loader: targets are the tokens shifted by one") {
  const Folder folder;
  const Loader loader = loader_of(folder, "abcde", 4);
  std::vector<int32_t> tokens(4), targets(4);

  REQUIRE(loader.read_training(0, {1, 1, 1}, 0, 0, {tokens, targets, {}}));

  CHECK(tokens == std::vector<int32_t>{'a', 'b', 'c', 'd'});
  CHECK(targets == std::vector<int32_t>{'b', 'c', 'd', 'e'});
}

TEST_CASE("loader: a step reads the same sequences whatever the world size and accumulation") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('!' + i % 90);
  const Loader loader = loader_of(folder, text, 5);
  constexpr int64_t kGlobalBatch = 12, kPosition = 36;
  const auto read_step = [&](const BatchShape& shape) {
    REQUIRE(shape.global_batch() == kGlobalBatch);
    std::vector<std::vector<int32_t>> sequences;
    std::vector<int32_t> tokens(static_cast<size_t>(shape.micro_batch) * 5), targets(tokens.size());
    for (int64_t micro_step = 0; micro_step < shape.gradient_accumulation; ++micro_step) {
      for (int64_t rank = 0; rank < shape.data_parallel; ++rank) {
        REQUIRE(loader.read_training(kPosition, shape, micro_step, rank, {tokens, targets, {}}));
        for (auto at = tokens.begin(); at != tokens.end(); at += 5) sequences.emplace_back(at, at + 5);
      }
    }
    return sequences;
  };

  const auto alone = read_step({12, 1, 1});

  CHECK(alone == read_step({1, 12, 1}));
  CHECK(alone == read_step({3, 1, 4}));
  CHECK(alone == read_step({2, 2, 3}));
  CHECK(alone == read_step({1, 1, 12}));
}

TEST_CASE("loader: validation spreads over the text and slots beyond its count carry no loss") {
  const Folder folder;
  const Loader loader = loader_of(folder, "aabbccddeeffgghhii", 2);  // 9 sequences
  std::vector<int32_t> tokens(8), targets(8);

  REQUIRE(loader.read_validation(/*first_slot=*/1, /*count=*/3, {tokens, targets, {}}));

  CHECK(tokens == std::vector<int32_t>{'d', 'd', 'g', 'g', 0, 0, 0, 0});
  CHECK(targets == std::vector<int32_t>{'d', 'e', 'g', 'h', -1, -1, -1, -1});
}
