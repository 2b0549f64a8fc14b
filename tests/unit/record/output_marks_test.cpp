#include "runtime/record/output_marks.h"

#include <doctest/doctest.h>

using namespace shardrun::record;

TEST_CASE("output marks: what is written is read again") {
  CHECK(to_line(OutputHead{1767323045007, 12, "n 1"}) == "shardrun-times 1 1767323045007 12 n 1\n");
  CHECK(to_line(OutputMark{1767323045007, 5, 0}) == "1767323045007 5 0\n");
  const auto head = parse_output_head("shardrun-times 1 1767323045007 12 n 1");
  REQUIRE(head.has_value());
  CHECK(head->unix_milliseconds == 1767323045007);
  CHECK(head->bytes_before == 12);
  CHECK(head->node == "n 1");
  const auto mark = parse_output_mark("1767323045007 5 7");
  REQUIRE(mark.has_value());
  CHECK(mark->out_bytes == 5);
  CHECK(mark->err_bytes == 7);
}

TEST_CASE("output marks: torn lines, other versions and numbers that are none are refused") {
  for (const char* line : {"", "1", "1 2", "1 2 ", "1 2 3 4", "1 2 3x", "1 -2 3", "1  2 3",
                           "99999999999999999 1 1", "1 9223372036854775807 1", "shardrun-times 1 1 2 n"})
    CHECK_FALSE_MESSAGE(parse_output_mark(line).has_value(), line);
  for (const char* line : {"", "shardrun-times 1 ", "shardrun-times 1 1", "shardrun-times 1 1 2",
                           "shardrun-times 1 1 2 ", "shardrun-times 2 1 2 n", "1 2 3"})
    CHECK_FALSE_MESSAGE(parse_output_head(line).has_value(), line);
}
