#include "launcher/plan/grid.h"

#include <fmt/format.h>

#include "runtime/base/text.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// Splits at `separator` outside of quotes and brackets; a piece keeps its quotes.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces(1);
  char quote = 0;
  int depth = 0;
  for (const char c : text) {
    if (quote != 0) {
      quote = c == quote ? 0 : quote;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == separator && depth <= 0) {
      pieces.emplace_back();
      continue;
    }
    pieces.back() += c;
  }
  return pieces;
}

Error too_many(const std::string& where) {
  return Error(Code::kInvalid,
               fmt::format("{} more than {} runs; write fewer values, or several sweeps", where, kMostRuns));
}

}  // namespace

Result<std::vector<Assignments>> parse_grid(const std::vector<std::string>& axes) {
  std::vector<Assignments> runs(1);
  for (const std::string& axis : axes) {
    const size_t equals = axis.find('=');
    const std::string key = axis.substr(0, equals);
    const std::string values = equals == std::string::npos ? "" : axis.substr(equals + 1);
    if (key.empty() || values.empty())
      return Error(Code::kInvalid,
                   fmt::format("--grid {}: no values; write section.key=VALUE,VALUE", spec::printable(axis)));
    std::vector<Assignments> combined;
    for (const Assignments& run : runs) {
      for (const std::string& value : split(values, ',')) {
        if (value.empty())
          return Error(Code::kInvalid, fmt::format("--grid {}: an empty value; write section.key=VALUE,VALUE",
                                                   spec::printable(axis)));
        combined.push_back(run);
        combined.back().push_back(key + "=" + value);
        if (combined.size() > kMostRuns) return too_many("--grid makes");
      }
    }
    runs = std::move(combined);
  }
  return runs;
}

Result<std::vector<Assignments>> parse_list(std::string_view text, const std::string& file) {
  std::vector<Assignments> runs;
  int number = 0;
  while (!text.empty()) {
    const std::string_view line = base::take_line(text);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos || line.starts_with('#')) continue;
    Assignments run;
    for (std::string& word : split(line, ' ')) {
      while (!word.empty() && (word.back() == '\r' || word.back() == '\t')) word.pop_back();
      if (word.empty()) continue;
      const size_t equals = word.find('=');
      if (equals == 0 || equals == std::string::npos)
        return Error(
            Code::kInvalid,
            fmt::format("{}:{}: \"{}\" is no assignment; write section.key=VALUE with blanks between them",
                        file, number, spec::printable(word)));
      run.push_back(std::move(word));
    }
    runs.push_back(std::move(run));
    if (runs.size() > kMostRuns) return too_many(fmt::format("{} has", file));
  }
  if (runs.empty())
    return Error(Code::kInvalid,
                 fmt::format("{}: no runs; write section.key=VALUE on a line for each", file));
  return runs;
}

Result<void> check_assignments(const std::vector<Assignments>& runs) {
  for (const Assignments& run : runs) {
    for (const std::string& assignment : run) {
      const std::string key = assignment.substr(0, assignment.find('='));
      for (const std::string_view shared : {"name", "resources", "slurm", "cluster", "logging.directory",
                                            "program.snapshot", "precompile", "fault_tolerance"}) {
        if (key != shared && !key.starts_with(std::string(shared) + ".")) continue;
        return Error(Code::kInvalid,
                     fmt::format("{}: all runs of a sweep share it, for they are one Slurm array; {}",
                                 spec::printable(assignment),
                                 key == "resources.nodes" ? "use `shardrun scale` for numbers of nodes"
                                                          : "give it with --set"));
      }
    }
  }
  return {};
}

}  // namespace shardrun::launcher
