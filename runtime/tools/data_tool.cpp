#include "runtime/tools/data_tool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/counter_random.h"
#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/tools/data_preview.h"
#include "runtime/tools/option_words.h"
#include "runtime/tools/stop_requests.h"
#include "runtime/trainer/data/document_encoder.h"
#include "runtime/trainer/data/documents.h"
#include "runtime/trainer/data/loader.h"
#include "runtime/trainer/data/token_file.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;
using base::Result;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string tokenizer, output;
  double validation = 0.0;  // share of the documents
  uint64_t seed = 1;
  std::string chat_template;
  data::Encoding encoding;
  data::Reading reading;
  bool json = false;
  int64_t show = 0;  // documents that are shown; 0: they are written
  std::vector<std::string> files;
};

Result<void> read_option(std::string_view name, std::string_view value, Options& options) {
  if (name == "tokenizer") {
    options.tokenizer = value;
  } else if (name == "output") {
    options.output = value;
  } else if (name == "seed") {
    return read_number(value, name, options.seed);
  } else if (name == "validation") {
    RETURN_IF_ERROR(read_number(value, name, options.validation));
    if (!(options.validation >= 0.0 && options.validation < 1.0))
      return Error(Code::kInvalid,
                   "--validation: name a share from 0 up to, but not including, 1, e.g. 0.01");
  } else if (name == "template") {
    options.chat_template = value;
  } else if (name == "show") {
    return read_number(value, name, options.show);
  } else if (name == "text-field") {
    options.reading.text_field = value;
    options.reading.text_field_asked_for = true;
  } else {
    return Error(Code::kInvalid, fmt::format("there is no option --{}", name));
  }
  return {};
}

Result<Options> read_options(std::span<char* const> arguments) {
  Options options;
  ASSIGN_OR_RETURN(
      const auto files,
      read_option_words(arguments, "data",
                        {{"--split-on-blank-lines", options.reading.split_on_blank_lines},
                         {"--no-special-tokens", options.encoding.special_tokens, false},
                         {"--marks-in-text", options.encoding.marks_in_text},
                         {"--json", options.json}},
                        [&](auto name, auto value) { return read_option(name, value, options); }));
  options.files.assign(files.begin(), files.end());
  if (options.tokenizer.empty() || options.output.empty() != (options.show > 0) || options.files.empty())
    return Error(
        Code::kInvalid,
        "a tokenizer, an output folder or --show, and at least one file are needed; see shardrun data "
        "--help");
  if (!options.chat_template.empty())
    RETURN_IF_ERROR(data::choose_template(options.chat_template, options.tokenizer, options.encoding));
  return options;
}

// Shows "shardrun data:  45 %  12.3 of 27.0 MiB  5.1 MiB/s" on stderr, where that is a terminal.
class Progress {
 public:
  explicit Progress(int64_t total_bytes) : total_(total_bytes), shows_(::isatty(STDERR_FILENO) == 1) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  void update(int64_t bytes) {
    const auto now = Clock::now();
    if (!shows_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = true;
    const double seconds = std::chrono::duration<double>(now - begin_).count(), mebi = 1 << 20;
    const auto done = static_cast<double>(bytes), total = static_cast<double>(total_);
    fmt::print(stderr, "\r\033[Kshardrun data: {:3.0f} %  {:.1f} of {:.1f} MiB  {:.1f} MiB/s",
               100.0 * done / total, done / mebi, total / mebi, done / mebi / std::max(seconds, 1e-3));
    std::fflush(stderr);
  }

 private:
  int64_t total_;
  bool shows_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

// Decides which documents are held out: exactly `held_out` of `documents`, chosen by the seed.
struct Split {
  int64_t documents = 0, held_out = 0;
  uint64_t key = 0;

  bool holds_out(int64_t document) const {
    return held_out > 0 &&
           data::permuted_index(key, static_cast<uint64_t>(document), static_cast<uint64_t>(documents)) <
               static_cast<uint64_t>(held_out);
  }
};

Result<Split> make_split(const Options& options, int64_t documents) {
  Split split{documents, 0, base::random_bits(options.seed, base::hash_name("validation documents"))};
  if (options.validation <= 0.0) return split;
  if (documents < 2) {
    return Error(
        Code::kInvalid,
        "--validation: one document cannot be split; name several files, or use --split-on-blank-lines");
  }
  const auto wanted = std::llround(options.validation * static_cast<double>(documents));
  split.held_out = std::clamp<int64_t>(wanted, 1, documents - 1);
  return split;
}

// One of the two files that are written.
struct Output {
  std::string path;
  data::TokenFileWriter writer;
  int64_t learned_tokens = 0;
};

Result<Output> open_output(const std::string& path, const data::TokenizerFacts& tokenizer) {
  ASSIGN_OR_RETURN(auto writer, data::TokenFileWriter::create(path, tokenizer));
  return Output{path, std::move(writer)};
}

Result<void> check_absent(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  return Error(Code::kRefused, fmt::format("{} is already there; remove it or name another folder", path));
}

struct Job {
  const Options& options;
  const data::Tokenizer& tokenizer;
  Split split;
  Output train;
  std::optional<Output> validation;
  int64_t documents = 0, empty_documents = 0, bytes = 0;
  std::vector<int32_t> ids = {};
  int64_t garbled_documents = 0;  // whose bytes are not all UTF-8, where that matters
  std::string first_garbled = {};
};

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = base::character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// To every tokenizer but that of bytes, a byte that is not UTF-8 is U+FFFD: words in another encoding would be learned without their
// letters.
void note_encoding(Job& job, const data::DocumentReader& reader, const data::Document& document) {
  if (job.tokenizer.facts().kind == data::byte_tokenizer_facts().kind || is_utf8(document.text)) return;
  if (job.garbled_documents++ == 0) job.first_garbled = reader.place();
}

void warn_of_encoding(const Job& job) {
  if (job.garbled_documents == 0) return;
  fmt::print(
      stderr,
      "shardrun: warning: {}: {} document{} from here on, whose bytes are not all UTF-8: each that is not "
      "was read as U+FFFD; write the files in UTF-8 and make the tokens anew: iconv -f NAME -t UTF-8, where "
      "NAME is what they are in, such as WINDOWS-1252\n",
      base::visible(job.first_garbled), job.garbled_documents, job.garbled_documents == 1 ? "" : "s");
}

int64_t count_learned(const std::vector<int32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; });
}

// What the conversations of a file have been so far.
struct Talks {
  int64_t count = 0, learned_tokens = 0;
  std::set<std::string> roles = {};

  void note(const std::vector<data::Message>& messages, int64_t learned) {
    constexpr size_t kMostRoles = 8;
    if (messages.empty()) return;
    ++count;
    learned_tokens += learned;
    for (const data::Message& message : messages)
      if (roles.size() < kMostRoles) roles.insert(message.role);
  }
  // A loss of 0 would pass for a success.
  Result<void> check(const std::string& path) const {
    if (count == 0 || learned_tokens > 0) return {};
    return Error(
        Code::kInvalid,
        fmt::format(
            "{}: no token of its {} conversation{} is learned: what the role \"assistant\" (or "
            "\"gpt\" in \"from\") says is, and the roles here are \"{}\"; rename the one that answers",
            path, count, count == 1 ? "" : "s", fmt::join(roles, "\", \"")));
  }
};

Result<void> tokenize_file(Job& job, data::DocumentReader& reader, Progress& progress, StopRequests& stop) {
  Talks talks;
  while (true) {
    ASSIGN_OR_RETURN(const auto document, reader.next());
    if (!document.has_value()) break;
    if (auto encoded = encode_document(job.tokenizer, *document, job.options.encoding, job.ids); !encoded)
      return Error(encoded.error().code(),
                   fmt::format("{}: {}", reader.place(), encoded.error().to_string()));
    note_encoding(job, reader, *document);
    Output& output = job.split.holds_out(job.documents++) ? *job.validation : job.train;
    if (job.ids.empty()) ++job.empty_documents;
    RETURN_IF_ERROR(output.writer.append(job.ids));
    const int64_t learned = count_learned(job.ids);
    output.learned_tokens += learned;
    talks.note(document->messages, learned);
    progress.update(job.bytes + reader.bytes_read());
    if (stop.came()) return Error(Code::kCancelled, "stopped on request; nothing was written");
  }
  job.bytes += reader.bytes();
  return talks.check(reader.path());
}

// What --json prints.
struct WrittenFile {
  std::string path;
  int64_t documents = 0, tokens = 0, learned_tokens = 0;
};

void fields(auto& visit, const WrittenFile& file) {
  visit("path", file.path);
  visit("documents", file.documents);
  visit("tokens", file.tokens);
  visit("learned_tokens", file.learned_tokens);
}

struct Summary {
  std::vector<WrittenFile> files;
  std::string tokenizer;
  int64_t vocabulary = 0, empty_documents = 0;
};

void fields(auto& visit, const Summary& summary) {
  visit("files", summary.files);
  visit("tokenizer", summary.tokenizer);
  visit("vocabulary", summary.vocabulary);
  visit("empty_documents", summary.empty_documents);
}

void print_summary(const Job& job) {
  const data::TokenizerFacts& facts = job.tokenizer.facts();
  Summary summary{{}, facts.kind, facts.vocabulary, job.empty_documents};
  for (const Output* output : {&job.train, job.validation ? &*job.validation : nullptr}) {
    if (output == nullptr) continue;
    summary.files.push_back(
        {output->path, output->writer.documents(), output->writer.tokens(), output->learned_tokens});
  }
  if (job.options.json) {
    fmt::print("{}", base::json_of(summary, {.sorted = false}));
    return;
  }
  for (const WrittenFile& file : summary.files)
    fmt::print(
        "{}: {} documents, {} tokens{}\n", file.path, file.documents, file.tokens,
        file.learned_tokens == file.tokens ? "" : fmt::format(", {} of them learned", file.learned_tokens));
  fmt::print("tokenizer {}, vocabulary {}: put [model] vocab = {} or more into the job\n", facts.kind,
             facts.vocabulary, facts.vocabulary);
  if (job.empty_documents > 0) fmt::print("{} documents were empty and are left out\n", job.empty_documents);
}

// Shows the first documents as they would be written, and writes nothing.
Result<void> show(const Options& options, const data::Tokenizer& tokenizer) {
  int64_t left = options.show;
  const bool coloured = ::isatty(STDOUT_FILENO) == 1;
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(auto reader, data::DocumentReader::open(file, "shardrun data", options.reading));
    for (; left > 0; --left) {
      ASSIGN_OR_RETURN(const auto document, reader.next());
      if (!document.has_value()) break;
      std::vector<int32_t> ids;
      if (auto encoded = encode_document(tokenizer, *document, options.encoding, ids); !encoded)
        return Error(encoded.error().code(),
                     fmt::format("{}: {}", reader.place(), encoded.error().to_string()));
      fmt::print("{}", preview(tokenizer, ids, reader.place(), coloured));
    }
  }
  return {};
}

Result<void> run(const Options& options, StopRequests& stop) {
  const auto tokenizer = data::open_tokenizer(options.tokenizer);
  if (!tokenizer) return tokenizer.error().context("--tokenizer");
  if (options.show > 0) return show(options, **tokenizer);
  RETURN_IF_ERROR(base::make_directories(options.output));
  data::Reading reading = options.reading;
  reading.scratch = options.output;  // where there is room for what comes out of them
  std::vector<data::DocumentReader> readers;
  int64_t documents = 0, bytes = 0;
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(auto reader, data::DocumentReader::open(file, "shardrun data", reading));
    documents += reader.count();
    bytes += reader.bytes();
    readers.push_back(std::move(reader));
  }
  ASSIGN_OR_RETURN(const auto split, make_split(options, documents));
  const std::string train_path = options.output + "/train.tokens",
                    validation_path = options.output + "/validation.tokens";
  RETURN_IF_ERROR(check_absent(train_path));
  RETURN_IF_ERROR(check_absent(validation_path));
  for (const std::string& path : {train_path, validation_path}) data::TokenFileWriter::remove_abandoned(path);
  const data::TokenizerFacts& facts = (*tokenizer)->facts();
  ASSIGN_OR_RETURN(auto train, open_output(train_path, facts));
  Job job{options, **tokenizer, split, std::move(train), std::nullopt};
  if (split.held_out > 0) {
    ASSIGN_OR_RETURN(auto validation, open_output(validation_path, facts));
    job.validation.emplace(std::move(validation));
  }
  {
    Progress progress(bytes);
    for (data::DocumentReader& reader : readers) RETURN_IF_ERROR(tokenize_file(job, reader, progress, stop));
  }
  if (job.validation) RETURN_IF_ERROR(job.validation->writer.finish());
  if (auto finished = job.train.writer.finish(); !finished) {
    if (job.validation) ::unlink(job.validation->path.c_str());
    return finished;
  }
  warn_of_encoding(job);
  print_summary(job);
  return {};
}

}  // namespace

int run_data_tool(std::span<char* const> arguments) {
  Result<void> done;
  if (const auto options = read_options(arguments); options) {
    StopRequests stop;
    done = run(*options, stop);
  } else {
    done = options.error();
  }
  if (done) return contract::kExitDone;
  return fail(done.error());
}

}  // namespace shardrun::tools
