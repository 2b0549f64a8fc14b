#include "runtime/base/visible.h"

#include <doctest/doctest.h>

#include "runtime/base/json_fields.h"

using namespace shardrun::base;

TEST_CASE("visible: bytes that steer a terminal or are no UTF-8 are written as hex") {
  CHECK_EQ(visible("plain \xe2\x82\xac\ttab"), "plain \xe2\x82\xac\ttab");
  CHECK_EQ(visible("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  CHECK_EQ(visible(std::string_view("a\0b", 3)), "a\\x00b");
  CHECK_EQ(visible("a\nb\x7f"), "a\\x0ab\\x7f");
  CHECK_EQ(visible("\xc2\x9b"
                   "1m"),
           "\\xc2\\x9b1m");  // a control of the C1 block
  CHECK_EQ(visible("\xc2\x80\xc2\x9f\xc2\xa0"), "\\xc2\\x80\\xc2\\x9f\xc2\xa0");
  CHECK_EQ(visible("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  CHECK_EQ(visible("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");           // overlong
  CHECK_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  CHECK_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  CHECK_EQ(visible("\xe2\x82"), "\\xe2\\x82");                    // cut off
  CHECK_EQ(visible("\xff"), "\\xff");
}

TEST_CASE(
    "visible: what turns the direction of words or breaks lines is written as hex, other writing is not") {
  CHECK_EQ(visible("\u202ea\u2066b\u2028\u200f\u061c"),
           "\\xe2\\x80\\xaea\\xe2\\x81\\xa6b\\xe2\\x80\\xa8\\xe2\\x80\\x8f\\xd8\\x9c");
  CHECK_EQ(visible("שלום 東京 ä"), "שלום 東京 ä");
}

TEST_CASE("visible: of several lines only the newlines stay") {
  CHECK_EQ(visible_lines("a\r\nb\x1b\n"), "a\\x0d\nb\\x1b\n");
}

TEST_CASE(
    "json: no string of a document carries a control to a terminal, and its reader gets what was written") {
  CHECK_EQ(json_text_of("ä\x1b\x7f\u009b\u202e"), "\"ä\\u001b\\u007f\\u009b\\u202e\"");
}
