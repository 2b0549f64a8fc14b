#include "runtime/trainer/data/documents.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == text.npos;
}

// Returns the line at `at` without its line break; moves `at` behind it.
std::string_view take_line(std::string_view text, size_t& at) {
  const size_t end = std::min(text.find('\n', at), text.size());
  const std::string_view line = text.substr(at, end - at);
  at = std::min(end + 1, text.size());
  return line;
}

}  // namespace

Result<DocumentReader> DocumentReader::open(const std::string& path, const std::string& key,
                                            bool split_on_blank_lines) {
  ASSIGN_OR_RETURN(auto file, MappedFile::open(path, key));
  const Kind kind = path.ends_with(".jsonl") ? Kind::kJsonLines
                    : split_on_blank_lines   ? Kind::kParagraphs
                                             : Kind::kWhole;
  return DocumentReader(std::move(file), path, kind);
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
    const std::string_view first = take_line(whole, at);
    if (is_blank(first)) continue;
    if (kind_ == Kind::kJsonLines) return first;
    size_t end = begin + first.size();
    while (at < whole.size()) {
      size_t after = at;
      const std::string_view next = take_line(whole, after);
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
    return Error(
        Code::kInvalid,
        fmt::format("{}: a document of {} bytes is more than the {} that one may have; split it, or use "
                    "--split-on-blank-lines",
                    place(), taken.size(), kMaximumTextBytes));
  }
  if (kind_ != Kind::kJsonLines) return std::optional<Document>(Document{std::string(taken), {}});
  ASSIGN_OR_RETURN(auto document, parse_json(taken));
  return std::optional<Document>(std::move(document));
}

Result<Document> DocumentReader::parse_json(std::string_view line) const {
  const auto wrong = [&](std::string_view what) {
    return Error(Code::kInvalid, fmt::format("{}: {}; each line is {{\"text\": \"…\"}} or {{\"messages\": "
                                             "[{{\"role\": \"…\", \"content\": \"…\"}}, …]}}",
                                             place(), what));
  };
  const auto object = base::parse_json(line);
  if (object.is_discarded()) return wrong("is not JSON");
  if (!object.is_object()) return wrong("is not a JSON object");
  const auto text = object.find("text"), messages = object.find("messages");
  if ((text == object.end()) == (messages == object.end()))
    return wrong("has not exactly one of \"text\" and \"messages\"");
  Document document;
  if (text != object.end()) {
    if (!text->is_string()) return wrong("\"text\" is not a string");
    document.text = text->get<std::string>();
    return document;
  }
  if (!messages->is_array() || messages->empty()) return wrong("\"messages\" is not a list, or empty");
  for (const auto& message : *messages) {
    if (!message.is_object()) return wrong("a message is not an object");
    const auto role = message.find("role"), content = message.find("content");
    if (role == message.end() || !role->is_string() || content == message.end() || !content->is_string())
      return wrong("a message lacks \"role\" or \"content\", or one of them is not a string");
    document.messages.push_back({role->get<std::string>(), content->get<std::string>()});
  }
  return document;
}

}  // namespace shardrun::data
