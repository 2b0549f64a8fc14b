#include "runtime/record/node_lines.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace shardrun::record;

namespace {

std::vector<std::string> lines_of(const std::vector<std::string>& pieces) {
  NodeLines lines;
  std::vector<std::string> out;
  const auto sink = [&](std::string_view text) { out.emplace_back(text); };
  for (const std::string& piece : pieces) lines.append(piece, sink);
  lines.finish(sink);
  return out;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("node lines: a line is whole only when its end has come") {
  CHECK(lines_of({"one\ntw", "o\n", "\nthree"}) == Lines{"one", "two", "", "three"});
}

TEST_CASE("node lines: a carriage return ends a line, once for CRLF, and a progress bar becomes lines") {
  CHECK(lines_of({"a\r\nb\r\n"}) == Lines{"a", "b"});
  CHECK(lines_of({"a\r", "\nb"}) == Lines{"a", "b"});
  CHECK(lines_of({"\r10%\r20%\r100%\n"}) == Lines{"10%", "20%", "100%"});
  CHECK(lines_of({"a\r\n\r\nb\n"}) == Lines{"a", "", "b"});
}

TEST_CASE("node lines: a line of exactly the limit stays whole and a longer one is split with marks") {
  const std::string limit(kMaxLineBytes, 'x');

  CHECK(lines_of({limit + "\n"}) == Lines{limit});
  CHECK(lines_of({limit, "y\n"}) == Lines{limit + " [...]", "[...] y"});
}

TEST_CASE("node lines: the pieces of a long line hold all of it, however it arrives") {
  std::string text;
  for (int i = 0; text.size() < 5 * kMaxLineBytes; ++i) text += std::to_string(i) + ' ';
  for (size_t step : {size_t{1}, size_t{1000}, text.size()}) {
    Lines pieces;
    for (size_t at = 0; at < text.size(); at += step) pieces.push_back(text.substr(at, step));

    std::string joined;
    for (std::string line : lines_of(pieces)) {
      CHECK(line.size() <= kMaxLineBytes + 6);
      if (line.starts_with("[...] ")) line.erase(0, 6);
      if (line.ends_with(" [...]")) line.resize(line.size() - 6);
      joined += line;
    }

    CHECK(joined == text);
  }
}

TEST_CASE("node lines: a split does not cut a character in two") {
  const std::string text = std::string(kMaxLineBytes - 1, 'x') + "\xe2\x82\xac" + "tail";

  const Lines lines = lines_of({text + "\n"});

  CHECK(lines == Lines{std::string(kMaxLineBytes - 1, 'x') + " [...]", "[...] \xe2\x82\xactail"});
}

TEST_CASE("node lines: times are UTC with milliseconds") {
  const auto time = std::chrono::system_clock::from_time_t(1767323045) + std::chrono::milliseconds(7);

  CHECK(format_utc(time) == "2026-01-02T03:04:05.007Z");
}

TEST_CASE("node lines: a character is not cut in two where a line is, wherever the pipe has cut the text") {
  const std::string before(kMaxLineBytes - 1, 'x'), text = before + "\xe2\x96\x81y\n";  // U+2581
  const Lines wanted = {before + " [...]", "[...] \xe2\x96\x81y"};
  for (size_t cut = before.size(); cut <= text.size(); ++cut) {
    CAPTURE(cut);
    CHECK(lines_of({text.substr(0, cut), text.substr(cut)}) == wanted);
  }
}
