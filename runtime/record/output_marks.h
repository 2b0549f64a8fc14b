// Output marks: when a rank wrote what, beside the files that have what it wrote.
//
// rank_<g>.times begins with a head, "shardrun-times 1 <Unix ms> <bytes before> <node>", and goes on with a mark for each
// piece of output, "<Unix ms> <bytes of .out> <bytes of .err>": how long the two files were when the piece had been written.
// A rank's supervisor (runtime/rank/rank_files) writes it; views (launcher/view/rank_output) put lines in order by it.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun::record {

struct OutputHead {
  int64_t unix_milliseconds = 0;  // when the segment began
  int64_t bytes_before = 0;       // what the rank had written into the segments before
  std::string node;
};

struct OutputMark {
  int64_t unix_milliseconds = 0;
  int64_t out_bytes = 0, err_bytes = 0;
};

// One line, with its newline.
std::string to_line(const OutputHead& head);
std::string to_line(const OutputMark& mark);

// Return nothing for a line of another shape: a torn one, say.
std::optional<OutputHead> parse_output_head(std::string_view line);
std::optional<OutputMark> parse_output_mark(std::string_view line);

}  // namespace shardrun::record
