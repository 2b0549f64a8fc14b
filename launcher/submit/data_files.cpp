#include "launcher/submit/data_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/foreign_format.h"
#include "runtime/record/token_file_format.h"
#include "runtime/spec/architecture.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;

// Returns the bytes that a file begins with, at most kFormatBytes; none where it cannot be read.
std::string beginning_of(const std::string& path) {
  std::string bytes(record::kFormatBytes, '\0');
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// What the first bytes of a data file and its size tell of it.
struct ListedFile {
  bool is_text = false;
  int64_t tokens = 0;  // as the trainer counts them
  // Of a text, that of the tokenizer of bytes. None for a token file of another version, of which the trainer says so.
  std::optional<record::TokenFileHeader> header;

  std::string_view tokenizer() const {
    const std::string_view kind(header->tokenizer.data(), header->tokenizer.size());
    return kind.substr(0, kind.find('\0'));
  }
  bool has_tokenizer_of(const ListedFile& other) const {
    const auto facts = [](const record::TokenFileHeader& h) {
      return std::tie(h.tokenizer, h.tokenizer_hash, h.vocabulary, h.special);
    };
    return facts(*header) == facts(*other.header);
  }
};

ListedFile text_of(int64_t bytes) {
  record::TokenFileHeader header;
  header.vocabulary = 256;
  header.documents = 1;
  header.tokenizer = {'b', 'y', 't', 'e'};
  header.special = {-1, 0, -1, -1, -1};  // a separator ends a document
  return {true, bytes + 1, header};
}

Result<ListedFile> token_file_of(const std::string& begin, int64_t bytes, const std::string& what) {
  const auto damaged = [&](const std::string& how) {
    return Error(Code::kInvalid,
                 fmt::format("{} is damaged: {}; make it again with shardrun data", what, how));
  };
  record::TokenFileHeader header;
  if (begin.size() < sizeof header) return damaged("it ends inside its header");
  std::memcpy(&header, begin.data(), sizeof header);
  if (header.byte_order != record::kByteOrderMark || header.version != record::kTokenFileVersion)
    return ListedFile();
  if (const std::string fault = record::header_fault(header); !fault.empty()) return damaged(fault);
  if (const std::string fault = record::size_fault(header, static_cast<uint64_t>(bytes)); !fault.empty())
    return damaged(fault);
  return ListedFile{false, static_cast<int64_t>(header.tokens), header};
}

Result<ListedFile> check_file(const std::string& origin, const std::string& full) {
  const auto refuse = [&](const std::string& what) {
    return Error(Code::kInvalid, fmt::format("{}: {}{}", origin, full, what));
  };
  struct stat status {};
  if (::stat(full.c_str(), &status) != 0)
    return refuse(fmt::format(": {}; name a readable text file", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) return refuse(" is no regular file; name a text file");
  if (::access(full.c_str(), R_OK) != 0)
    return refuse(fmt::format(": {}; make it readable", std::strerror(errno)));
  if (status.st_size == 0) return refuse(" is empty; name a file with text");
  const std::string begin = beginning_of(full);
  if (begin.starts_with(record::kTokenFileMagic))
    return token_file_of(begin, status.st_size, fmt::format("{}: {}", origin, full));
  RETURN_IF_ERROR(record::refuse_foreign_format(std::as_bytes(std::span(begin)), full, origin));
  return text_of(status.st_size);
}

// Refuses a file that was typed twice. A link to a file is another name, and somebody's wish.
Result<void> check_named_once(const spec::JobSpec& spec, const std::string& key,
                              const std::vector<std::string>& files, const fs::path& here) {
  std::set<fs::path> seen;
  for (size_t i = 0; i < files.size(); ++i) {
    if (seen.insert((here / files[i]).lexically_normal()).second) continue;
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is in this list already, and would count twice; remove one of the two, "
                             "or list a link to it if that is meant",
                             spec.origin(fmt::format("{}[{}]", key, i)), files[i]));
  }
  return {};
}

// Refuses a file that does not go with `first`, the first one of the job, or whose tokens the model does not have.
Result<void> check_tokenizer(const spec::JobSpec& spec, const std::string& origin, const std::string& full,
                             const ListedFile& file, const ListedFile& first) {
  if (spec.model.vocab > 0 && static_cast<uint32_t>(spec.model.vocab) < file.header->vocabulary)
    return Error(Code::kInvalid,
                 fmt::format("{}: [model] vocab = {} is too small for {}, of a {} tokenizer; use at least {}",
                             spec.origin("model.vocab"), spec.model.vocab, full, file.tokenizer(),
                             file.header->vocabulary));
  if (file.has_tokenizer_of(first)) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: {} was made with another tokenizer, of the kind {}, than the first of [data] "
                           "files, of the kind {}; make all of them with one",
                           origin, full, file.tokenizer(), first.tokenizer()));
}

// Refuses files from which nobody can make the examples of a BERT.
Result<void> check_documents(const spec::JobSpec& spec, const std::string& origin,
                             const std::vector<ListedFile>& files) {
  const bool pairs = spec.model.next_sentence;
  uint64_t documents = 0;
  for (const ListedFile& file : files) {
    const auto& [begin, end, unknown, pad, mask] = file.header->special;
    if (file.is_text || std::min({begin, end, pad, mask}) < 0)
      return Error(Code::kInvalid,
                   fmt::format("{}: a {} needs token files of its vocabulary; make them with "
                               "shardrun data --tokenizer PATH/{}",
                               origin, pairs ? "BERT" : "RoBERTa", pairs ? "vocab.txt" : "tokenizer.json"));
    documents += file.header->documents;
  }
  if (!pairs || documents >= 2) return {};
  return Error(Code::kInvalid, fmt::format("{}: one document is too few, because next-sentence pairs take "
                                           "two; add documents",
                                           origin));
}

// Refuses a list that is not of one kind, or that is too short.
Result<void> check_list(const spec::JobSpec& spec, const std::string& key,
                        const std::vector<ListedFile>& files) {
  int64_t tokens = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    tokens += files[i].tokens;
    if (files[i].is_text == files[0].is_text) continue;
    return Error(Code::kInvalid,
                 fmt::format("{}: this is {} and the files before it are not; list files of one kind",
                             spec.origin(fmt::format("{}[{}]", key, i)),
                             files[i].is_text ? "plain text" : "a token file"));
  }
  const std::string origin = spec.origin(key + "[0]");
  if (spec::architecture_of(spec.program.trainer).paired) return check_documents(spec, origin, files);
  if (tokens > spec.data.sequence_length) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: {} tokens are too few for one sequence of {} + 1; add text or lower [data] "
                           "sequence_length",
                           origin, tokens, spec.data.sequence_length));
}

}  // namespace

std::vector<std::pair<std::string, const std::vector<std::string>*>> data_lists(const spec::JobSpec& spec) {
  std::vector<std::pair<std::string, const std::vector<std::string>*>> lists{
      {"data.files", &spec.data.files}, {"data.validation", &spec.data.validation}};
  for (const spec::EvaluationSet& set : spec.evaluation.sets)
    lists.emplace_back("evaluation." + set.name, &set.files);
  return lists;
}

Result<void> check_data_files(const spec::JobSpec& spec, const std::string& working_directory) {
  std::optional<ListedFile> first;  // of all lists
  for (const auto& [key, files] : data_lists(spec)) {
    RETURN_IF_ERROR(check_named_once(spec, key, *files, working_directory));
    std::vector<ListedFile> known;
    for (size_t i = 0; i < files->size(); ++i) {
      const std::string full = (fs::path(working_directory) / (*files)[i]).string();
      const std::string origin = spec.origin(fmt::format("{}[{}]", key, i));
      ASSIGN_OR_RETURN(ListedFile file, check_file(origin, full));
      if (!file.header) continue;
      if (!first) first = file;
      RETURN_IF_ERROR(check_tokenizer(spec, origin, full, file, *first));
      known.push_back(std::move(file));
    }
    if (!files->empty() && known.size() == files->size()) RETURN_IF_ERROR(check_list(spec, key, known));
  }
  return {};
}

std::vector<std::string> lint_data_files(const spec::JobSpec& spec, const std::string& working_directory) {
  std::vector<std::string> warnings;
  const fs::path here = working_directory;
  std::error_code ignored;
  for (const auto& [key, files] : data_lists(spec)) {
    for (size_t i = 0; i < files->size(); ++i) {
      const std::string origin = spec.origin(fmt::format("{}[{}]", key, i)), &file = (*files)[i];
      const bool is_trained_on =
          key != "data.files" &&
          std::any_of(spec.data.files.begin(), spec.data.files.end(), [&](const std::string& trained) {
            return fs::equivalent(here / trained, here / file, ignored);
          });
      if (is_trained_on)
        warnings.push_back(fmt::format(
            "{}: {} is one of [data] files, too, so its loss says nothing of text that the model has not "
            "seen; hold documents out: shardrun data --validation 0.01",
            origin, file));
      // Beside weights that know other tokens, lint_tokenizer() warns of all text.
      if (spec.model.init == "random" && file.ends_with(".jsonl") &&
          !beginning_of((here / file).string()).starts_with(record::kTokenFileMagic))
        warnings.push_back(fmt::format(
            "{}: {} is read as plain text, and the JSON around its documents is learned, too; make "
            "token files of them: shardrun data --tokenizer byte --output DIR {}",
            origin, file, file));
    }
  }
  return warnings;
}

}  // namespace shardrun::launcher
