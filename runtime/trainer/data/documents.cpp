#include "runtime/trainer/data/documents.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/visible.h"
#include "runtime/record/foreign_format.h"
#include "runtime/trainer/data/compressed_file.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;
using Json = nlohmann::json;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(base::kWhite) == text.npos;
}

// Returns the line at `at` without its line break; moves `at` behind it.
std::string_view line_at(std::string_view text, size_t& at) {
  const size_t end = std::min(text.find('\n', at), text.size());
  const std::string_view line = text.substr(at, end - at);
  at = std::min(end + 1, text.size());
  return line;
}

Error wrong(std::string what) {
  return Error(Code::kInvalid, std::move(what));
}

Result<std::string> text_member(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return wrong(fmt::format("{:?} is not a string", name));
  return found->get<std::string>();
}

// What other data sets call the roles.
std::string role_of(const std::string& from) {
  return from == "human" ? "user" : from == "gpt" ? "assistant" : from;
}

// Reads the messages of a list whose entries name the speaker and the words so.
Result<Document> conversation(const Json& list, const std::string& name, const char* role,
                              const char* content) {
  if (!list.is_array() || list.empty()) return wrong(fmt::format("{:?} is not a list, or empty", name));
  Document document;
  for (const Json& message : list) {
    if (!message.is_object()) return wrong("a message is not an object");
    const auto who = message.find(role), what = message.find(content);
    if (who == message.end() || !who->is_string() || what == message.end() || !what->is_string())
      return wrong(
          fmt::format("a message lacks {:?} or {:?}, or one of them is not a string", role, content));
    document.messages.push_back({role_of(who->get<std::string>()), what->get<std::string>()});
  }
  return document;
}

// Says from which column on, counted in characters, a line is no JSON, and why. The library's exception has the byte.
Error not_json(const std::string& place, std::string_view line) {
  if (base::nests_too_deep(line))
    return wrong(place + ": nests deeper than any document; leave the line out");
  size_t fault = line.size();
  try {
    std::ignore = Json::parse(line);
  } catch (const Json::parse_error& failure) {
    fault = std::min(line.size(), failure.byte - std::min<size_t>(failure.byte, 1));
  }
  size_t at = 0, length = 0;
  int64_t column = 1;
  for (; at < line.size() && (length = base::character_length(line.substr(at))) > 0 && at + length <= fault;
       at += length)
    ++column;
  if (at == line.size())
    return wrong(fmt::format("{}:{}: the line ends before its JSON does; each line is one JSON object", place,
                             column));
  if (length > 0)
    return wrong(fmt::format("{}:{}: is not JSON from here on; each line is one JSON object", place, column));
  return wrong(fmt::format(
      "{}:{}: the byte 0x{:02x} here is not UTF-8; write the file in UTF-8: iconv -f NAME -t UTF-8, "
      "where NAME is what it is in, such as WINDOWS-1252",
      place, column, static_cast<unsigned char>(line[at])));
}

// Data sets keep what a conversation was made of beside it: a prompt without a completion is such a member, and beside a member
// that was asked for by name all others are.
Result<Document> document_of(const Json& object, const std::string& text_field, bool is_asked_for) {
  if (!object.is_object()) return wrong("is not a JSON object");
  const bool text = object.contains(text_field), alone = text && is_asked_for;
  const bool messages = !alone && text_field != "messages" && object.contains("messages");
  const bool conversations = !alone && text_field != "conversations" && object.contains("conversations");
  const bool has_prompt = !alone && text_field != "prompt" && object.contains("prompt");
  const bool prompt = has_prompt && (object.contains("completion") || !(text || messages || conversations));
  if (text + messages + conversations + prompt != 1) {
    return wrong(fmt::format("has not exactly one of {:?}, \"messages\", \"conversations\" and \"prompt\"",
                             text_field));
  }
  if (messages) return conversation(object["messages"], "messages", "role", "content");
  if (conversations) return conversation(object["conversations"], "conversations", "from", "value");
  Document document;
  if (text) {
    ASSIGN_OR_RETURN(document.text, text_member(object, text_field));
    return document;
  }
  ASSIGN_OR_RETURN(auto question, text_member(object, "prompt"));
  ASSIGN_OR_RETURN(auto answer, text_member(object, "completion"));
  document.messages = {{"user", std::move(question)}, {"assistant", std::move(answer)}};
  return document;
}

Result<MappedFile> contents_of(const std::string& path, const std::string& key, const std::string& scratch) {
  auto file = MappedFile::open(path, key);
  if (!file || name_when_unpacked(path) == path) return file;
  ASSIGN_OR_RETURN(const auto unpacked, unpack(path, scratch));
  return MappedFile::map(unpacked.get(), path, key);
}

}  // namespace

Result<DocumentReader> DocumentReader::open(const std::string& path, const std::string& key,
                                            Reading reading) {
  const std::string_view name = name_when_unpacked(path);
  ASSIGN_OR_RETURN(auto file, contents_of(path, key, reading.scratch));
  RETURN_IF_ERROR(record::refuse_foreign_format(file.bytes(), path, key));
  const Kind kind = name.ends_with(".jsonl")       ? Kind::kJsonLines
                    : reading.split_on_blank_lines ? Kind::kParagraphs
                                                   : Kind::kWhole;
  return DocumentReader(std::move(file), path, kind, std::move(reading));
}

std::string_view DocumentReader::text() const {
  const auto bytes = file_.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the next document's bytes, empty at the end. `at` moves behind them, and `line`, the line number of `at`,
// becomes that of their first line.
std::string_view DocumentReader::take(size_t& at, int64_t& line) const {
  const std::string_view whole = text();
  if (kind_ == Kind::kWhole) return whole.substr(std::exchange(at, whole.size()));
  for (; at < whole.size(); ++line) {
    const size_t begin = at;
    const std::string_view first = line_at(whole, at);
    if (is_blank(first)) continue;
    if (kind_ == Kind::kJsonLines) return first;
    size_t end = begin + first.size();
    while (at < whole.size()) {
      size_t after = at;
      const std::string_view next = line_at(whole, after);
      if (is_blank(next)) break;
      end = at + next.size();
      at = after;
    }
    return whole.substr(begin, end - begin);
  }
  return {};
}

int64_t DocumentReader::count() const {
  int64_t documents = 0, line = 1;
  for (size_t at = 0; !take(at, line).empty();) ++documents;
  return documents;
}

std::string DocumentReader::place() const {
  return fmt::format("{}:{}", path_, document_line_);
}

Result<std::optional<Document>> DocumentReader::next() {
  const size_t begin = at_;
  document_line_ = line_;
  const std::string_view taken = take(at_, document_line_);
  if (taken.empty()) return std::optional<Document>();
  const auto first = static_cast<size_t>(taken.data() - text().data());
  line_ += std::count(text().begin() + static_cast<std::ptrdiff_t>(begin),
                      text().begin() + static_cast<std::ptrdiff_t>(at_), '\n');
  SHARDRUN_CHECK(first >= begin);
  if (taken.size() > kMaximumTextBytes) {
    return Error(Code::kInvalid,
                 fmt::format("{}: a document of {} bytes is more than the {} that one may have; split it{}",
                             place(), taken.size(), kMaximumTextBytes,
                             kind_ == Kind::kWhole ? ", or use --split-on-blank-lines" : ""));
  }
  if (kind_ != Kind::kJsonLines) return std::optional<Document>(Document{std::string(taken), {}});
  ASSIGN_OR_RETURN(auto document, parse_json(taken));
  return std::optional<Document>(std::move(document));
}

Result<Document> DocumentReader::parse_json(std::string_view line) const {
  const Json parsed = base::parse_json(line);
  if (parsed.is_discarded()) return not_json(place(), line);
  auto document = document_of(parsed, text_field_, text_field_asked_for_);
  if (document) return document;
  return Error(
      Code::kInvalid,
      fmt::format(
          "{}: {}; each line is {{\"{}\": \"…\"}}, {{\"messages\": [{{\"role\": \"…\", \"content\": \"…\"}}, "
          "…]}}, "
          "{{\"conversations\": [{{\"from\": \"human\", \"value\": \"…\"}}, …]}} or {{\"prompt\": \"…\", "
          "\"completion\": \"…\"}}",
          place(), document.error().message(), text_field_));
}

}  // namespace shardrun::data
