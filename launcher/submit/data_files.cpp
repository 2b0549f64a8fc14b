#include "launcher/submit/data_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>

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

// Returns the tokens of a token file; 0 for one of another version, of which the trainer says so.
Result<int64_t> tokens_of(const std::string& begin, int64_t bytes, const std::string& what) {
  const auto damaged = [&](const std::string& how) {
    return Error(Code::kInvalid,
                 fmt::format("{} is damaged: {}; make it again with shardrun data", what, how));
  };
  record::TokenFileHeader header;
  if (begin.size() < sizeof header) return damaged("it ends inside its header");
  std::memcpy(&header, begin.data(), sizeof header);
  if (header.byte_order != record::kByteOrderMark || header.version != record::kTokenFileVersion) return 0;
  if (const std::string fault = record::header_fault(header); !fault.empty()) return damaged(fault);
  if (const std::string fault = record::size_fault(header, static_cast<uint64_t>(bytes)); !fault.empty())
    return damaged(fault);
  return static_cast<int64_t>(header.tokens);
}

// Checks a file and returns its tokens, as the trainer counts them.
Result<int64_t> check_file(const std::string& origin, const std::string& full) {
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
    return tokens_of(begin, status.st_size, fmt::format("{}: {}", origin, full));
  RETURN_IF_ERROR(record::refuse_foreign_format(std::as_bytes(std::span(begin)), full, origin));
  return status.st_size + 1;
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

}  // namespace

std::vector<std::pair<std::string, const std::vector<std::string>*>> data_lists(const spec::JobSpec& spec) {
  std::vector<std::pair<std::string, const std::vector<std::string>*>> lists{
      {"data.files", &spec.data.files}, {"data.validation", &spec.data.validation}};
  for (const spec::EvaluationSet& set : spec.evaluation.sets)
    lists.emplace_back("evaluation." + set.name, &set.files);
  return lists;
}

Result<void> check_data_files(const spec::JobSpec& spec, const std::string& working_directory) {
  const spec::Architecture* architecture = spec::find_architecture(spec.program.trainer);
  for (const auto& [key, files] : data_lists(spec)) {
    RETURN_IF_ERROR(check_named_once(spec, key, *files, working_directory));
    int64_t tokens = 0;
    bool all_known = true;
    for (size_t i = 0; i < files->size(); ++i) {
      const std::string full = (fs::path(working_directory) / (*files)[i]).string();
      ASSIGN_OR_RETURN(const int64_t more, check_file(spec.origin(fmt::format("{}[{}]", key, i)), full));
      tokens += more;
      all_known = all_known && more > 0;
    }
    // A BERT's sequences are counted document by document, which takes the whole file.
    if (files->empty() || !all_known || architecture == nullptr || architecture->paired) continue;
    if (tokens <= spec.data.sequence_length)
      return Error(
          Code::kInvalid,
          fmt::format("{}: {} tokens are too few for one sequence of {} + 1; add text or lower [data] "
                      "sequence_length",
                      spec.origin(key + "[0]"), tokens, spec.data.sequence_length));
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
