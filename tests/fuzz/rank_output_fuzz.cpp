// Runs libFuzzer over what a rank's program prints, on its way to the logs: secrets are taken out and lines are made, the same
// wherever the pipe has cut the bytes. The first byte says where they are cut here.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/rank/redaction.h"
#include "runtime/record/node_lines.h"

using namespace shardrun;

namespace {

constexpr const char* kSecrets[] = {"hunter2!", "hunter2!hunter3!", "ababab", "line one\nline two"};

std::vector<std::string_view> pieces_of(std::string_view text, size_t each) {
  std::vector<std::string_view> pieces;
  for (; !text.empty(); text.remove_prefix(std::min(each, text.size())))
    pieces.push_back(text.substr(0, each));
  return pieces;
}

std::string redacted(const std::vector<std::string_view>& pieces) {
  std::vector<rank::Secret> secrets;
  for (const char* value : kSecrets) secrets.push_back({"S", value});
  rank::Redactor redactor(std::move(secrets));
  std::string out;
  const auto sink = [&](std::string_view bytes) { out += bytes; };
  for (const std::string_view piece : pieces) redactor.append(piece, sink);
  redactor.finish(sink);
  return out;
}

std::vector<std::string> lines_of(const std::vector<std::string_view>& pieces) {
  record::NodeLines node_lines;
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) {
    SHARDRUN_CHECK(line.find_first_of("\r\n") == line.npos && line.size() <= record::kMaxLineBytes + 6);
    lines.emplace_back(line);
  };
  for (const std::string_view piece : pieces) node_lines.append(piece, sink);
  node_lines.finish(sink);
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::vector<std::string_view> whole = {text}, cut = pieces_of(text, size_t{data[0]} + 1);
  // What looks like a key and does not end as one is shown again at the latest after some bytes, which depends on the cuts.
  const bool has_key = text.find("-----BEGIN ") != text.npos;
  const std::string clean = redacted(cut);
  for (const char* secret : kSecrets) SHARDRUN_CHECK(clean.find(secret) == std::string::npos);
  SHARDRUN_CHECK(has_key || clean == redacted(whole));
  SHARDRUN_CHECK(lines_of(cut) == lines_of(whole));
  return 0;
}
