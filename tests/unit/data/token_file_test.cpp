#include "runtime/trainer/data/token_file.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;

namespace {

std::string bytes_of(const std::string& path) {
  auto bytes = base::read_file(path);
  REQUIRE(bytes);
  return std::move(bytes).value();
}

Result<TokenFile> parse(const std::string& bytes) {
  return TokenFile::parse(std::as_bytes(std::span(bytes)), "[data] files: x.tokens");
}

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  REQUIRE(file.read(0, tokens));
  return tokens;
}

TokenizerFacts facts_of(int32_t vocabulary) {
  return {
      .kind = "sentencepiece", .hash = 0xdeadbeef, .vocabulary = vocabulary, .special = {1, 2, 0, -1, -1}};
}

}  // namespace

TEST_CASE("token file: what was written is read, in two and in four bytes a token") {
  for (const int32_t vocabulary : {300, 32768, 32769, 1 << 24}) {
    const Folder folder;
    const int32_t last = vocabulary - 1;
    const std::string bytes =
        bytes_of(token_file(folder, "x", facts_of(vocabulary), {{1, last, ~last}, {}, {~0, 5}}));

    const auto file = parse(bytes);

    REQUIRE(file);
    CHECK(file->tokenizer() == facts_of(vocabulary));
    CHECK(file->tokens() == 5);
    CHECK(file->documents() == 2);
    CHECK(file->document_begin(1) == 3);
    CHECK(file->document_begin(2) == 5);
    CHECK(file->has_loss_mask());
    CHECK(read_all(*file) == std::vector<int32_t>{1, last, ~last, ~0, 5});
    CHECK(bytes.size() == 88 + (vocabulary <= 32768 ? 16 : 24) + 16 + 4);
  }
}

TEST_CASE("token file: the bytes are those that docs/formats.md gives") {
  const Folder folder;

  const std::string bytes =
      bytes_of(token_file(folder, "x", byte_tokenizer_facts(), {{'h', ~'i', 0}, {'y', 0}}));

  REQUIRE(bytes.size() == 88 + 16 + 16 + 4);
  CHECK(bytes.substr(0, 8) == "SHRDTOKS");
  CHECK(bytes.substr(40, 16) == std::string("byte") + std::string(12, '\0'));
  CHECK(bytes.substr(88, 10) == std::string("h\0i\200\0\0y\0\0\0", 10));
  CHECK(bytes.substr(104, 16) == std::string("\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16));
}

TEST_CASE("token file: a file of many blocks is read anywhere") {
  const Folder folder;
  std::vector<std::vector<int32_t>> documents(700);
  std::vector<int32_t> whole;
  for (size_t i = 0; i < documents.size(); ++i) {
    for (size_t k = 0; k < 1 + i * 37 % 2000; ++k)
      documents[i].push_back(static_cast<int32_t>((i * k) % 32000));
    whole.insert(whole.end(), documents[i].begin(), documents[i].end());
  }
  const std::string bytes = bytes_of(token_file(folder, "x", facts_of(32000), documents));
  REQUIRE(bytes.size() > (size_t{1} << 20));
  const auto file = parse(bytes);
  REQUIRE(file);
  CHECK(!file->has_loss_mask());

  CHECK(read_all(*file) == whole);
  for (size_t begin = 0; begin < whole.size(); begin += 997) {
    std::vector<int32_t> some(std::min<size_t>(2050, whole.size() - begin));
    REQUIRE(file->read(static_cast<int64_t>(begin), some));
    CHECK(std::equal(some.begin(), some.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
  }
}

TEST_CASE("token file: no byte can change and no end be missing without being found") {
  const Folder folder;
  const std::string good = bytes_of(token_file(folder, "x", facts_of(300), {{1, 7, 2}, {1, 8, 9, 2}}));
  REQUIRE(parse(good));
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char flip : {1, -128}) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      CAPTURE(i);
      const auto file = parse(damaged);
      if (!file) {
        CHECK(file.error().message().find("[data] files: x.tokens") == 0);
        continue;
      }
      std::vector<int32_t> tokens(static_cast<size_t>(file->tokens()));
      const auto read = file->read(0, tokens);
      REQUIRE(!read);
      CHECK(read.error().code() == base::Code::kCorrupt);
      CHECK(read.error().message().find("[data] files: x.tokens is damaged: bytes 88 to ") == 0);
    }
  }
  for (size_t size = 0; size < good.size(); ++size) CHECK(!parse(good.substr(0, size)));
  CHECK(!parse(good + "x"));
}

TEST_CASE("token file: damage far from what is read does not stop it, and reading there names the bytes") {
  const Folder folder;
  std::string bytes = bytes_of(token_file(folder, "x", facts_of(300), {std::vector<int32_t>(10000, 7)}));
  bytes[88 + 4096 * 2 + 10] ^= 1;
  const auto file = parse(bytes);
  REQUIRE(file);
  std::vector<int32_t> tokens(4096);

  CHECK(file->read(0, tokens));
  const auto across = file->read(4000, tokens);

  REQUIRE(!across);
  CHECK(across.error().message() ==
        "[data] files: x.tokens is damaged: bytes 8280 to 12376 do not match their checksum; make it again "
        "with "
        "shardrun data");
}

TEST_CASE("token file: an unfinished one leaves nothing behind, and one without documents is refused") {
  const Folder folder;
  const std::string path = folder / "x";
  {
    auto writer = TokenFileWriter::create(path, byte_tokenizer_facts());
    REQUIRE(writer);
    REQUIRE(writer->append(std::vector<int32_t>{1, 2}));
    auto other = TokenFileWriter::create(path, byte_tokenizer_facts());
    REQUIRE(other);
    const auto finished = other->finish();
    REQUIRE(!finished);
    CHECK(finished.error().code() == base::Code::kRefused);
  }
  CHECK(std::filesystem::is_empty(folder / ""));
}

TEST_CASE("token file: of two writers of one name the second to end is refused, and the first's file stays") {
  const Folder folder;
  const std::string path = folder / "x";
  {
    auto first = TokenFileWriter::create(path, byte_tokenizer_facts());
    auto second = TokenFileWriter::create(path, byte_tokenizer_facts());
    REQUIRE(first);
    REQUIRE(second);
    REQUIRE(first->append(std::vector<int32_t>{1, 2}));
    REQUIRE(second->append(std::vector<int32_t>{3, 4, 5}));
    REQUIRE(first->finish());
    const auto refused = second->finish();
    REQUIRE(!refused);
    CHECK(refused.error().code() == base::Code::kRefused);
    CHECK_EQ(refused.error().message(), path + " was written by another meanwhile; name another folder");
  }
  const std::string bytes = bytes_of(path);
  const auto file = parse(bytes);
  REQUIRE(file);
  CHECK(read_all(*file) == std::vector<int32_t>{1, 2});
  CHECK_EQ(std::distance(std::filesystem::directory_iterator(folder / ""), {}), 1);
}

TEST_CASE("token file: what a killed writer left is removed, and what a living one writes stays") {
  const Folder folder;
  const std::string path = folder / "x";
  auto living = TokenFileWriter::create(path, byte_tokenizer_facts());
  REQUIRE(living);
  folder.file("x.tmp.AbCd12", "half");
  folder.file("x.tmp.JustNw", "perhaps of another node, whose lock is not seen here");
  folder.file("x.tmp.notes", "not a writer's");
  folder.file("y.tmp.AbCd12", "of another name");
  for (const auto& entry : std::filesystem::directory_iterator(folder / ""))
    if (entry.path().filename() != "x.tmp.JustNw")
      std::filesystem::last_write_time(entry.path(), entry.last_write_time() - std::chrono::hours(2));

  TokenFileWriter::remove_abandoned(path);

  CHECK(!std::filesystem::exists(folder / "x.tmp.AbCd12"));
  CHECK(std::filesystem::exists(folder / "x.tmp.JustNw"));
  CHECK(std::filesystem::exists(folder / "x.tmp.notes"));
  CHECK(std::filesystem::exists(folder / "y.tmp.AbCd12"));
  REQUIRE(living->append(std::vector<int32_t>{1, 2}));
  CHECK(living->finish());
}
