#include "runtime/trainer/compile/entry.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "runtime/trainer/compile/digest.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;

constexpr std::string_view kFirstLine = "shardrun kernel 1\n";

// The value of the line "<key> <value>\n" that `rest` must begin with, and takes the line away.
std::optional<std::string_view> take_line(std::string_view& rest, std::string_view key) {
  const size_t end = rest.find('\n');
  if (end == rest.npos || rest.substr(0, key.size()) != key || end <= key.size() || rest[key.size()] != ' ')
    return std::nullopt;
  const std::string_view value = rest.substr(key.size() + 1, end - key.size() - 1);
  rest.remove_prefix(end + 1);
  return value;
}

// As fmt writes one: digits alone, none of them needless.
std::optional<int64_t> number_of(std::optional<std::string_view> text) {
  int64_t value = 0;
  if (!text || text->empty() || text->front() == '-' || (text->front() == '0' && text->size() > 1))
    return std::nullopt;
  const char* const end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

}  // namespace

std::string to_bytes(const Entry& entry) {
  return fmt::format("{}kind {}\nname {}\nmilliseconds {}\nsha256 {}\nbytes {}\n\n{}", kFirstLine,
                     entry.kind == Entry::Kind::kLibrary ? "library" : "failure", entry.name,
                     entry.milliseconds, sha256_hex(entry.payload), entry.payload.size(), entry.payload);
}

base::Result<Entry> parse_entry(std::string_view bytes) {
  const Error refused(Code::kCorrupt, "no entry of a kernel cache, or cut off");
  if (bytes.substr(0, kFirstLine.size()) != kFirstLine) return refused;
  std::string_view rest = bytes.substr(kFirstLine.size());
  const auto kind = take_line(rest, "kind");
  const auto name = take_line(rest, "name");
  const auto milliseconds = number_of(take_line(rest, "milliseconds"));
  const auto sha256 = take_line(rest, "sha256");
  const auto size = number_of(take_line(rest, "bytes"));
  if (!kind || (*kind != "library" && *kind != "failure") || !name || !milliseconds || !sha256 || !size)
    return refused;
  if (rest.empty() || rest.front() != '\n' || rest.size() - 1 != static_cast<uint64_t>(*size)) return refused;
  rest.remove_prefix(1);
  if (sha256_hex(rest) != *sha256) return Error(Code::kCorrupt, "the bytes do not match their SHA-256");
  return Entry{*kind == "library" ? Entry::Kind::kLibrary : Entry::Kind::kFailure, std::string(*name),
               *milliseconds, std::string(rest)};
}

}  // namespace shardrun::compile
