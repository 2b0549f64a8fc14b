#include "launcher/submit/tokenizer_lint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/trainer/data/tokenizer.h"
#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

const std::string kPeers = SOURCE_DIR "/tests/unit/data/peers";

// A job's folder with weights of which the tests say what lies beside them.
struct Job : tests::Folder {
  Job() { fs::create_directory(path() + "/weights"); }

  void bring(const std::string& peer, const std::string& name) const {
    fs::copy_file(kPeers + "/" + peer, path() + "/weights/" + name, fs::copy_options::overwrite_existing);
  }
  std::string tokens(const std::string& name, const std::string& tokenizer) const {
    const auto opened = data::open_tokenizer(tokenizer == "byte" ? tokenizer : kPeers + "/" + tokenizer);
    REQUIRE(opened);
    tests::token_file(*this, name, (*opened)->facts(), {{5, 6, 7}});
    return name;
  }
  Lines warnings(const std::string& files, const std::string& init = "weights") const {
    const auto spec = spec::parse_job_spec(
        "name = \"x\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\ninit = \"" + init +
            "\"\n[data]\nfiles = [\"" + files + "\"]\n",
        "job.toml");
    REQUIRE_MESSAGE(spec, spec.error().to_string());
    return lint_tokenizer(*spec, path());
  }
};

}  // namespace

TEST_CASE("tokenizers: plain text beside weights that know other tokens is warned of, with the mend") {
  const Job job;
  job.file("a.txt", "words");
  CHECK(job.warnings("a.txt").empty());  // nobody knows what the weights know
  job.bring("bpe/smollm2/tokenizer.json", "tokenizer.json");
  const std::string own = job.path() + "/weights/tokenizer.json";
  CHECK(job.warnings("a.txt") ==
        Lines{"job.toml:8:10: a.txt is plain text, whose bytes will be the tokens, and the weights of "
              "[model] init "
              "know those of " +
              own + "; make token files of it: shardrun data --tokenizer " + own + " --output DIR a.txt"});
  CHECK(job.warnings("a.txt", "random").empty());
  CHECK(job.warnings("absent.txt").empty());
  job.file("weights/model.safetensors", "");
  CHECK(job.warnings("a.txt", "weights/model.safetensors").size() == 1);
}

TEST_CASE("tokenizers: token files are those of any tokenizer beside the weights, or are warned of once") {
  const Job job;
  job.bring("bpe/smollm2/tokenizer.json", "tokenizer.json");
  const std::string own = job.path() + "/weights/tokenizer.json";
  CHECK(job.warnings(job.tokens("own", "bpe/smollm2/tokenizer.json")).empty());
  CHECK(job.warnings(job.tokens("pieces", "tiny.model") + "\", \"own\", \"" + job.tokens("bytes", "byte")) ==
        Lines{"job.toml:8:10: pieces was made by another tokenizer, of the kind sentencepiece, than " + own +
              ", whose tokens the weights of [model] init know; make it anew: shardrun data --tokenizer " +
              own + " --output DIR FILES"});
  job.bring("tiny.model", "tokenizer.model");
  CHECK(job.warnings("pieces").empty());
  CHECK(job.warnings("bytes").size() == 1);
  CHECK(job.warnings(job.tokens("words", "vocab.txt")).size() == 1);
  job.bring("vocab.txt", "vocab.txt");
  CHECK(job.warnings("words").empty());
}

TEST_CASE("tokenizers: nothing is said of the tokenizer that a damaged header names") {
  const Job job;
  job.bring("bpe/smollm2/tokenizer.json", "tokenizer.json");
  job.tokens("bytes", "byte");
  REQUIRE(job.warnings("bytes").size() == 1);
  std::fstream(job.path() + "/bytes", std::ios::in | std::ios::out).seekp(40) << "\x1b[2J";
  CHECK(job.warnings("bytes").empty());
  CHECK_FALSE(data_file_of("SHRDTOKS").is_read);
  CHECK(data_file_of("SHRDTOK").is_read);
  CHECK_FALSE(data_file_of("").is_read);
}

TEST_CASE("tokenizers: a run is not read with another tokenizer than that of its data without a word") {
  const Job job;
  job.bring("bpe/smollm2/tokenizer.json", "tokenizer.json");
  const std::string own = job.path() + "/weights/tokenizer.json", folder = job.path() + "/weights";
  const auto warnings = [&](const std::string& file, const std::string& tokenizer) {
    return lint_tokenizer_of_run({job.path() + "/" + file}, tokenizer);
  };
  job.tokens("own", "bpe/smollm2/tokenizer.json");
  job.tokens("bytes", "byte");
  job.file("a.txt", "words");

  CHECK(warnings("own", own).empty());
  CHECK(warnings("own", folder).empty());
  CHECK(warnings("bytes", "byte").empty());
  CHECK(warnings("a.txt", "byte").empty());
  CHECK(warnings("gone", own).empty());
  CHECK(warnings("own", job.path() + "/gone.json").empty());
  CHECK(warnings("bytes", own) ==
        Lines{"the run was trained on " + job.path() +
              "/bytes, tokens of another tokenizer of the kind byte, and not of " + own +
              ", to which its ids are other words; name the tokenizer of the data with --tokenizer"});
  CHECK(warnings("a.txt", folder).size() == 1);
  CHECK(warnings("own", kPeers + "/bpe/llama3/tokenizer.json").size() == 1);
}
