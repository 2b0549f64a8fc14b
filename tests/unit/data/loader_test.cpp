#include "runtime/trainer/data/loader.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;
using plan::even_batch;

namespace {

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

TEST_CASE("corpus: the entropy of a large text is that of stretches from all of it") {
  const Folder folder;
  constexpr size_t kHalf = size_t{1} << 20;  // of which only every fourth stretch is read
  const Corpus corpus = corpus_of({folder.file("a", std::string(kHalf, 'a') + std::string(kHalf, 'b'))});

  CHECK(corpus.unigram_entropy(kHalf / 2 + 16) == doctest::Approx(std::log(2.0)));
  CHECK(corpus.unigram_entropy(kHalf / 2 + 16) == corpus.unigram_entropy());
}

TEST_CASE("corpus: missing, empty and odd files are refused by name with a mend") {
  const Folder folder;
  const std::vector<std::string> missing{folder / "nowhere.txt"}, empty{folder.file("empty.txt", "")},
      device{"/dev/null"}, none;

  const auto from_missing = Corpus::open(missing, "[data] files");
  const auto from_empty = Corpus::open(empty, "[data] validation");
  const auto from_device = Corpus::open(device, "[data] files");
  const auto from_none = Corpus::open(none, "[data] files");
  const std::vector<std::string> pipe = {folder / "pipe"};
  REQUIRE(::mkfifo(pipe.front().c_str(), 0600) == 0);
  const auto from_pipe = Corpus::open(pipe, "[data] files");

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
  REQUIRE(!from_pipe);
  CHECK(from_pipe.error().to_string().find("not a plain file") != std::string::npos);
  REQUIRE(!from_none);
}

TEST_CASE("corpus: what is no text is refused by how it begins, with what makes text of it") {
  const Folder folder;
  const auto refusal = [&](const std::string& bytes) {
    const std::vector<std::string> files{folder.file("rows.text", bytes)};
    const auto corpus = Corpus::open(files, "[data] files");
    if (corpus) return std::string("none");
    CHECK(corpus.error().code() == base::Code::kInvalid);
    const std::string line = corpus.error().message();
    CHECK(line.find("[data] files: ") == 0);
    return line.substr(line.find("rows.text"),
                       line.find(',', line.find("rows.text")) - line.find("rows.text"));
  };

  CHECK(refusal("PAR1\x15\x04") == "rows.text is a Parquet file");
  CHECK(refusal("ARROW1") == "rows.text is an Arrow file");
  CHECK(refusal("\xff\xff\xff\xff\x10") == "rows.text is an Arrow file");
  CHECK(refusal("\x1f\x8b\x08") == "rows.text is compressed by gzip");
  CHECK(refusal("\x28\xb5\x2f\xfd") == "rows.text is compressed by zstd");
  CHECK(refusal("BZh91AY&SY") == "rows.text is compressed by bzip2");
  CHECK(refusal(std::string("\xff\xfeh\0i\0", 6)) == "rows.text is in UTF-16");
  CHECK(refusal(std::string("\x0b\x01\x0b\0", 4)) == "rows.text has a zero byte");  // ids of two bytes
  CHECK(refusal("PARTY") == "none");
  CHECK(refusal("BZh91AY") == "none");
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

  REQUIRE(loader.read_training(0, even_batch(1, 1, 1), 0, 0, {tokens, targets, {}}));

  CHECK(tokens == std::vector<int32_t>{'a', 'b', 'c', 'd'});
  CHECK(targets == std::vector<int32_t>{'b', 'c', 'd', 'e'});
}

TEST_CASE("loader: a step reads the same sequences whatever the world size and accumulation") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('!' + i % 90);
  const Loader loader = loader_of(folder, text, 5);
  constexpr int64_t kGlobalBatch = 12, kPosition = 36;
  const auto read_step = [&](const plan::BatchPlan& shape) {
    REQUIRE(shape.global_batch == kGlobalBatch);
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

  const auto alone = read_step(even_batch(12, 1, 1));

  CHECK(alone == read_step(even_batch(1, 12, 1)));
  CHECK(alone == read_step(even_batch(3, 1, 4)));
  CHECK(alone == read_step(even_batch(2, 2, 3)));
  CHECK(alone == read_step(even_batch(1, 1, 12)));
}

TEST_CASE("loader: an uneven step reads each of its sequences once, and its other slots carry no loss") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('!' + i % 90);
  const Loader loader = loader_of(folder, text, 5);
  const plan::BatchPlan plan{11, 3, 2, 3};
  std::vector<std::vector<int32_t>> read, expected;
  int64_t targets_with_loss = 0, empty_slots = 0;
  std::vector<int32_t> tokens(15), targets(15);
  for (int64_t micro_step = 0; micro_step < 2; ++micro_step) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      REQUIRE(loader.read_training(36, plan, micro_step, rank, {tokens, targets, {}}));
      for (auto at = targets.begin(); at != targets.end(); at += 5) {
        const auto with_loss = std::count_if(at, at + 5, [](int32_t target) { return target >= 0; });
        targets_with_loss += with_loss;
        empty_slots += with_loss == 0 ? 1 : 0;
        if (with_loss > 0) read.emplace_back(at, at + 5);
      }
    }
  }
  for (int64_t slot = 0; slot < 11; ++slot) {
    REQUIRE(loader.read_training(36 + slot, even_batch(1, 1, 1), 0, 0,
                                 {std::span(tokens).first(5), std::span(targets).first(5), {}}));
    expected.emplace_back(targets.begin(), targets.begin() + 5);
  }
  CHECK(read == expected);
  CHECK(empty_slots == 18 - 11);
  CHECK(*loader.training_targets(36, plan.global_batch) == targets_with_loss);
}

TEST_CASE("loader: validation spreads over the text and slots beyond its count carry no loss") {
  const Folder folder;
  const Loader loader = loader_of(folder, "aabbccddeeffgghhii", 2);  // 9 sequences
  std::vector<int32_t> tokens(8), targets(8);

  REQUIRE(loader.read_validation(/*first_slot=*/1, /*count=*/3, {tokens, targets, {}}));

  CHECK(tokens == std::vector<int32_t>{'d', 'd', 'g', 'g', 0, 0, 0, 0});
  CHECK(targets == std::vector<int32_t>{'d', 'e', 'g', 'h', -1, -1, -1, -1});
}

TEST_CASE("loader: documents of token files are packed, told apart, and not predicted across their borders") {
  const Folder folder;
  const TokenizerFacts facts = byte_tokenizer_facts();
  const std::vector<std::string> files{
      token_file(folder, "a", facts, {{11, 12, 13}, {21, 22}, {31, 32, 33, 34, 35, 36}}),
      token_file(folder, "b", facts, {{41, 42}})};
  auto loader = Loader::create(corpus_of(files), 4, 1, "[data] files");
  REQUIRE(loader);
  REQUIRE(loader->sequences() == 3);
  std::vector<int32_t> tokens(12), targets(12), begins(12, -7);

  REQUIRE(loader->read_validation(0, 3, {tokens, targets, begins}));

  CHECK(tokens == std::vector<int32_t>{11, 12, 13, 21, 22, 31, 32, 33, 34, 35, 36, 41});
  CHECK(targets == std::vector<int32_t>{12, 13, -1, 22, -1, 32, 33, 34, 35, 36, -1, 42});
  CHECK(begins == std::vector<int32_t>{0, 0, 0, 3, 0, 1, 1, 1, 0, 0, 0, 3});
  CHECK(*loader->training_targets(0, 3) == 9);
}

TEST_CASE("loader: a document that begins right behind a sequence is not its last target") {
  const Folder folder;
  const std::vector<std::string> files{token_file(folder, "a", byte_tokenizer_facts(), {{1, 2}, {3, 4, 5}})};
  auto loader = Loader::create(corpus_of(files), 2, 1, "[data] files");
  REQUIRE(loader);
  std::vector<int32_t> tokens(4), targets(4), begins(4);

  REQUIRE(loader->read_validation(0, 2, {tokens, targets, begins}));

  CHECK(targets == std::vector<int32_t>{2, -1, 4, 5});
  CHECK(begins == std::vector<int32_t>{0, 0, 0, 0});
}

TEST_CASE("loader: tokens without loss are read and not predicted") {
  const Folder folder;
  const std::vector<std::string> files{
      token_file(folder, "a", byte_tokenizer_facts(), {{~1, ~2, 3, 0}, {~5, ~6, ~7, ~8, 9, 0}})};
  auto loader = Loader::create(corpus_of(files), 3, 1, "[data] files");
  REQUIRE(loader);
  std::vector<int32_t> tokens(9), targets(9);

  REQUIRE(loader->read_validation(0, 3, {tokens, targets, {}}));

  CHECK(tokens == std::vector<int32_t>{1, 2, 3, 0, 5, 6, 7, 8, 9});
  CHECK(targets == std::vector<int32_t>{-1, 3, 0, -1, -1, -1, -1, 9, 0});
  CHECK(*loader->training_targets(0, 3) == 4);
  CHECK(loader->corpus().has_loss_mask());
}

TEST_CASE("loader: the targets of a step are those that its ranks read, for text and for documents") {
  const Folder folder;
  std::vector<std::vector<int32_t>> documents(40);
  for (size_t i = 0; i < documents.size(); ++i) {
    for (size_t k = 0; k < 1 + i * 7 % 13; ++k) {
      const auto id = static_cast<int32_t>(k);
      documents[i].push_back(i % 3 == 0 && k < 5 ? ~id : id);
    }
  }
  auto unmarked = documents;
  for (auto& document : unmarked)
    for (int32_t& id : document) id = id < 0 ? ~id : id;
  const TokenizerFacts facts = byte_tokenizer_facts();
  for (const std::string& path :
       {token_file(folder, "masked", facts, documents), token_file(folder, "whole", facts, unmarked),
        folder.file("t", std::string(200, 'x'))}) {
    const auto loader = Loader::create(corpus_of({path}), 6, 3, "[data] files");
    REQUIRE(loader);
    const auto shape = even_batch(2, 2, 3);
    for (int64_t position = 0; position < 48; position += shape.global_batch) {
      int64_t targets = 0;
      std::vector<int32_t> tokens(12), read(12);
      for (int64_t micro_step = 0; micro_step < 2; ++micro_step) {
        for (int64_t rank = 0; rank < 3; ++rank) {
          REQUIRE(loader->read_training(position, shape, micro_step, rank, {tokens, read, {}}));
          for (const int32_t target : read) targets += target >= 0 ? 1 : 0;
        }
      }
      CHECK(*loader->training_targets(position, shape.global_batch) == targets);
    }
  }
}

TEST_CASE("loader: plain text reports one document, and prompts alone have no targets") {
  const Folder folder;
  const Loader text = loader_of(folder, "abcdefgh", 4);
  std::vector<int32_t> tokens(4), targets(4), begins(4, -7);
  REQUIRE(text.read_training(0, even_batch(1, 1, 1), 0, 0, {tokens, targets, begins}));
  CHECK(begins == std::vector<int32_t>(4, 0));

  auto prompts = Loader::create(
      corpus_of({token_file(folder, "p", byte_tokenizer_facts(), {std::vector<int32_t>(9, ~5)})}), 4, 1,
      "[data] files");
  REQUIRE(prompts);

  CHECK(*prompts->training_targets(0, 1) == 0);
  CHECK(!*prompts->has_targets());
  CHECK(*text.has_targets());
}

TEST_CASE("corpus: documents of several token files count on, and their tokens know them") {
  const Folder folder;
  const TokenizerFacts facts = byte_tokenizer_facts();
  const Corpus corpus = corpus_of({token_file(folder, "a", facts, {{1, 1, 1}, {2}}),
                                   token_file(folder, "b", facts, {{3, 3}, {4}, {5, 5}})});
  const std::vector<int64_t> begins{0, 3, 4, 6, 7, 9};

  REQUIRE(corpus.documents() == 5);
  for (int64_t document = 0; document < 5; ++document) {
    CHECK(corpus.document_begin(document) == begins[static_cast<size_t>(document)]);
    for (int64_t token = corpus.document_begin(document); token < corpus.document_begin(document + 1);
         ++token)
      CHECK(corpus.document_of(token) == document);
  }
  CHECK(corpus.document_begin(5) == 9);
  CHECK(corpus.vocabulary() == 256);
}

TEST_CASE("corpus: files of two kinds, or of two tokenizers, are refused") {
  const Folder folder;
  const std::string text = folder.file("a.txt", "text"),
                    tokens = token_file(folder, "t", byte_tokenizer_facts(), {{1}}),
                    bert = token_file(folder, "b", bert_facts(256), {{1}}),
                    magic = folder.file("m", "SHRDTOKS and nothing more");
  const auto refusal = [&](const std::vector<std::string>& files) {
    const auto corpus = Corpus::open(files, "[data] files");
    REQUIRE(!corpus);
    return corpus.error().message();
  };

  CHECK(refusal({text, tokens}).find("t is a token file and the files before it are not") !=
        std::string::npos);
  CHECK(refusal({tokens, text}).find("a.txt is plain text and the files before it are not") !=
        std::string::npos);
  CHECK(refusal({tokens, bert}).find("b was made with another wordpiece tokenizer (hash 00000007)") !=
        std::string::npos);
  CHECK(refusal({magic}).find("m is damaged: it ends inside its header") != std::string::npos);
}

TEST_CASE("loader: a damaged token file is named when what is damaged is read") {
  const Folder folder;
  const std::string path = token_file(folder, "x", byte_tokenizer_facts(), {std::vector<int32_t>(9000, 7)});
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(88 + 2 * 8000);
    file.put('\1');
  }
  const auto loader = Loader::create(corpus_of({path}), 100, 1, "[data] files");
  REQUIRE(loader);
  std::vector<int32_t> tokens(100), targets(100);
  int damaged = 0;
  for (int64_t position = 0; position < loader->sequences(); ++position) {
    const auto read = loader->read_training(position, even_batch(1, 1, 1), 0, 0, {tokens, targets, {}});
    if (read) continue;
    ++damaged;
    CHECK(read.error().code() == base::Code::kCorrupt);
    CHECK(read.error().message().find(path + " is damaged: bytes") != std::string::npos);
  }
  CHECK(damaged > 0);
  CHECK(damaged < 40);
}
