// DocumentReader: cuts input files into documents, and finds where in them something is wrong.
//
//   NAME.jsonl   one JSON object a line, in one of these shapes:
//                  {"text": "…"}, or the member that `text_field` names
//                  {"messages": [{"role": "…", "content": "…"}, …]}
//                  {"conversations": [{"from": "human", "value": "…"}, …]}: human is the user, gpt the assistant
//                  {"prompt": "…", "completion": "…"}: a question and its answer
//                and any other members beside it, a prompt without a completion among them
//   any other    plain text: the file is one document, or with `split_on_blank_lines` each paragraph is
//
// Each may be compressed: NAME.jsonl.gz, text.zst (compressed_file.h).
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/chat_template.h"
#include "runtime/trainer/data/mapped_file.h"

namespace shardrun::data {

using base::Result;

struct Document {
  std::string text;
  std::vector<Message> messages;  // a conversation in place of text, when not empty
};

struct Reading {
  bool split_on_blank_lines = false;
  std::string text_field = "text";
  std::string scratch = "/tmp";       // a folder in which compressed files are unpacked
  bool text_field_asked_for = false;  // by name: a line that has it is read as it, whatever else the line has
};

class DocumentReader {
 public:
  // Errors are those of MappedFile::open, with `key` before them, of unpack(), and of refuse_foreign_format().
  static Result<DocumentReader> open(const std::string& path, const std::string& key, Reading reading);

  // Returns the next document; nullopt after the last. kInvalid with file:line for what is not a document.
  Result<std::optional<Document>> next();
  // Returns how many times next() will return a document, as long as nothing is wrong.
  int64_t count() const;

  const std::string& path() const { return path_; }
  // Returns where the document stands that next() returned last: "file:line".
  std::string place() const;
  int64_t bytes_read() const { return static_cast<int64_t>(at_); }
  int64_t bytes() const { return static_cast<int64_t>(text().size()); }

 private:
  enum class Kind { kWhole, kParagraphs, kJsonLines };
  DocumentReader(MappedFile file, std::string path, Kind kind, Reading reading)
      : file_(std::move(file)),
        path_(std::move(path)),
        kind_(kind),
        text_field_(std::move(reading.text_field)),
        text_field_asked_for_(reading.text_field_asked_for) {}
  std::string_view text() const;
  std::string_view take(size_t& at, int64_t& line) const;
  Result<Document> parse_json(std::string_view line) const;

  MappedFile file_;
  std::string path_;
  Kind kind_;
  std::string text_field_;
  bool text_field_asked_for_;
  size_t at_ = 0;
  int64_t line_ = 1;           // line of at_, counted from 1
  int64_t document_line_ = 1;  // line of the document that was returned last
};

}  // namespace shardrun::data
