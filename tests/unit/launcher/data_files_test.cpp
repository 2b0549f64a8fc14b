#include "launcher/submit/data_files.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "runtime/record/token_file_format.h"
#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

// A job's folder, and what is said of its data files.
struct Job : tests::Folder {
  spec::JobSpec spec(
      const std::string& files, const std::string& rest = "",
      const std::string& model = "trainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n") const {
    auto read = spec::parse_job_spec(
        "name = \"x\"\n[program]\n" + model + "[data]\nsequence_length = 8\nfiles = [" + files + "]\n" + rest,
        "job.toml");
    REQUIRE_MESSAGE(read, read.error().to_string());
    return std::move(read).value();
  }
  // Returns the refusal without the job's folder; "" where there is none.
  std::string refusal(const spec::JobSpec& spec) const {
    const auto checked = check_data_files(spec, path());
    if (checked) return "";
    CHECK(checked.error().code() == base::Code::kInvalid);
    std::string line = checked.error().message();
    if (const size_t at = line.find(path() + "/"); at != line.npos) line.erase(at, path().size() + 1);
    return line;
  }
};

}  // namespace

TEST_CASE("data files: what is no text is refused at its place in the spec, with what makes text of it") {
  const Job job;
  job.file("a.txt", "nine byte");
  job.file("a.jsonl.gz", "\x1f\x8b\x08 and more");

  CHECK(job.refusal(job.spec("\"a.txt\"")).empty());
  CHECK(job.refusal(job.spec("\"a.txt\", \"a.jsonl.gz\"")) ==
        "job.toml:8:19: a.jsonl.gz is compressed by gzip, which is no text; `shardrun data` reads "
        "NAME.jsonl.gz "
        "and .zst, and writes token files, which a job reads");
  CHECK(job.refusal(job.spec("\"a.txt\"", "[evaluation]\ncode = [\"a.jsonl.gz\"]\n"))
            .starts_with("job.toml:10:9: a.jsonl.gz is compressed by gzip"));
}

TEST_CASE("data files: text that is shorter than one sequence is refused, all files of a list together") {
  const Job job;
  job.file("a.txt", "1234567");
  job.file("b.txt", "1");

  CHECK(job.refusal(job.spec("\"a.txt\"")) ==
        "job.toml:8:10: 8 tokens are too few for one sequence of 8 + 1; add text or lower [data] "
        "sequence_length");
  CHECK(job.refusal(job.spec("\"a.txt\", \"b.txt\"")).empty());
  CHECK(job.refusal(job.spec("\"a.txt\", \"b.txt\"", "validation = [\"b.txt\"]\n"))
            .starts_with("job.toml:9:15: 2 tokens are too few"));
}

TEST_CASE("data files: a file that a list names twice is refused, however it is spelled") {
  const Job job;
  job.file("a.txt", "nine byte");
  std::filesystem::create_symlink("a.txt", job / "b.txt");

  CHECK(job.refusal(job.spec("\"a.txt\", \"./a.txt\"")) ==
        "job.toml:8:19: ./a.txt is in this list already, and would count twice; remove one of the two, or "
        "list a link to it if that is meant");
  CHECK(job.refusal(job.spec("\"" + job / "a.txt" + "\", \"a.txt\"")).find(": a.txt is in this list") !=
        std::string::npos);
  CHECK(job.refusal(job.spec("\"a.txt\"", "[evaluation]\ncode = [\"a.txt\", \"a.txt\"]\n"))
            .starts_with("job.toml:10:18: a.txt is in this list already"));
  CHECK(job.refusal(job.spec("\"a.txt\", \"b.txt\"")).empty());
}

TEST_CASE("data files: a tokenizer with more tokens than the model is refused, and a second one") {
  const Job job;
  tests::token_file(job, "t", data::byte_tokenizer_facts(), {{1, 2, 3, 4, 5, 6, 7, 8, 0}});
  tests::token_file(job, "large", tests::bert_facts(300), {{5, 6, 7, 8, 9, 10, 11, 12, 299}});
  job.file("a.txt", "nine byte");
  const std::string llama = "trainer = \"llama\"\n[model]\npreset = \"llama-1m\"\nvocab = ";
  const auto refused = [&](const std::string& vocab, const std::string& files) {
    return job.refusal(job.spec(files, "", llama + vocab + "\n"));
  };

  CHECK(
      refused("299", "\"large\"") ==
      "job.toml:6:9: [model] vocab = 299 is too small for large, of a wordpiece tokenizer; use at least 300");
  CHECK(refused("300", "\"large\"").empty());
  CHECK(refused("255", "\"a.txt\"") ==
        "job.toml:6:9: [model] vocab = 255 is too small for a.txt, of a byte tokenizer; use at least 256");
  CHECK(
      refused("300", "\"t\", \"large\"") ==
      "job.toml:9:15: large was made with another tokenizer, of the kind wordpiece, than the first of [data] "
      "files, of the kind byte; make all of them with one");
  CHECK(refused("300", "\"t\", \"a.txt\"") ==
        "job.toml:9:15: this is plain text and the files before it are not; list files of one kind");
  // The bytes of a text are the tokens of "byte", so it may be held out beside them.
  CHECK(job.refusal(job.spec("\"t\"", "validation = [\"a.txt\"]\n")).empty());
}

TEST_CASE(
    "data files: a BERT needs documents of a vocabulary with its special tokens, and two for its pairs") {
  const Job job;
  job.file("a.txt", "nine byte");
  tests::token_file(job, "t", data::byte_tokenizer_facts(), {{1, 2, 0}, {3, 4, 0}});
  tests::token_file(job, "one", tests::bert_facts(30), {{5, 6, 7}});
  tests::token_file(job, "two", tests::bert_facts(30), {{5, 6, 7}, {8, 9}});
  const auto refused = [&](const std::string& preset, const std::string& files) {
    return job.refusal(job.spec(files, "", "trainer = \"bert\"\n[model]\npreset = \"" + preset + "\"\n"));
  };

  CHECK(refused("bert-tiny", "\"two\"").empty());
  CHECK(refused("bert-tiny", "\"one\"") ==
        "job.toml:8:10: one document is too few, because next-sentence pairs take two; add documents");
  CHECK(refused("roberta-base", "\"one\"").empty());
  for (const char* file : {"\"t\"", "\"a.txt\""})
    CHECK(
        refused("bert-tiny", file) ==
        "job.toml:8:10: a BERT needs token files of its vocabulary; make them with shardrun data --tokenizer "
        "PATH/vocab.txt");
}

TEST_CASE("data files: of token files the header is believed, and one that is not whole is refused") {
  const Job job;
  const std::string all =
      tests::token_file(job, "t", data::byte_tokenizer_facts(), {{1, 2, 3, 4, 5, 6, 7, 8, 0}});
  tests::token_file(job, "few", data::byte_tokenizer_facts(), {{1, 2, 0}});
  CHECK(job.refusal(job.spec("\"t\"")).empty());
  CHECK(job.refusal(job.spec("\"few\"")).starts_with("job.toml:8:10: 3 tokens are too few"));

  std::filesystem::resize_file(all, 100);
  CHECK(
      job.refusal(job.spec("\"t\"")) ==
      "job.toml:8:10: t is damaged: it has 100 bytes in the place of 124; make it again with shardrun data");
  std::filesystem::resize_file(all, 50);
  CHECK(job.refusal(job.spec("\"t\"")) ==
        "job.toml:8:10: t is damaged: it ends inside its header; make it again with shardrun data");
}

TEST_CASE(
    "data files: a header that names more tokens than there are bytes is refused, though its checksum "
    "holds") {
  const Job job;
  const std::string path =
      tests::token_file(job, "t", data::byte_tokenizer_facts(), {{1, 2, 3, 4, 5, 6, 7, 8, 0}});
  record::TokenFileHeader header;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  header.tokens += uint64_t{1} << 63;  // whose bytes are as many, modulo 2^64
  header.checksum = record::header_checksum(header);
  file.seekp(0).write(reinterpret_cast<const char*>(&header), sizeof header).flush();

  CHECK(job.refusal(job.spec("\"t\"")) ==
        "job.toml:8:10: t is damaged: it ends after 124 bytes; make it again with shardrun data");
}

TEST_CASE("data files: held-out text that is trained on, too, and JSON lines as text are warned of") {
  const Job job;
  job.file("a.txt", "words");
  job.file("a.jsonl", "{\"text\": \"a\"}\n");
  std::filesystem::create_symlink("a.txt", job / "b.txt");
  const auto warnings = [&](const std::string& files, const std::string& rest) {
    return lint_data_files(job.spec(files, rest), job.path());
  };

  CHECK(warnings("\"a.txt\"", "").empty());
  CHECK(warnings("\"a.txt\"", "validation = [\"b.txt\"]\n") ==
        std::vector<std::string>{
            "job.toml:9:15: b.txt is one of [data] files, too, so its loss says nothing of text "
            "that the model has not seen; hold documents out: shardrun data --validation 0.01"});
  CHECK(warnings("\"a.jsonl\"", "validation = [\"a.txt\"]\n") ==
        std::vector<std::string>{
            "job.toml:8:10: a.jsonl is read as plain text, and the JSON around its documents is "
            "learned, too; make token files of them: shardrun data --tokenizer byte --output DIR "
            "a.jsonl"});
}
