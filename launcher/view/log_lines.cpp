#include "launcher/view/log_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <unordered_map>

#include <fmt/format.h>

#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

// Returns the seconds since midnight with their fraction; enough to tell whether two near times lie within a
// second.
double seconds_of_day(const std::string& time) {
  if (time.size() < 19) return 0.0;
  const auto digits = [&](size_t at) { return (time[at] - '0') * 10 + (time[at + 1] - '0'); };
  double fraction = 0.0, unit = 0.1;
  for (size_t i = 20; i < time.size() && time[i] >= '0' && time[i] <= '9'; ++i, unit /= 10) {
    fraction += (time[i] - '0') * unit;
  }
  return digits(11) * 3600.0 + digits(14) * 60.0 + digits(17) + fraction;
}

}  // namespace

bool parse_log_line(std::string_view line, LogLine& out) {
  const size_t first = line.find(' ');
  if (first == std::string_view::npos) return false;
  const size_t second = line.find(' ', first + 1);
  const std::string_view who =
      line.substr(first + 1, second == std::string_view::npos ? second : second - first - 1);
  const size_t colon = who.rfind(':');
  if (colon == std::string_view::npos) return false;
  const auto [end, failure] =
      std::from_chars(who.data() + colon + 1, who.data() + who.size(), out.global_rank);
  if (failure != std::errc() || end != who.data() + who.size()) return false;
  out.time = line.substr(0, first);
  out.node = who.substr(0, colon);
  out.text = second == std::string_view::npos ? "" : line.substr(second + 1);
  return true;
}

bool is_second_before(const std::string& time, const std::string& other) {
  if (time.substr(0, 10) != other.substr(0, 10)) return time < other;  // another day
  return seconds_of_day(other) - seconds_of_day(time) > 1.0;
}

std::vector<LogGroup> collapse(std::vector<LogLine> lines, std::vector<LogGroup> begun) {
  const auto is_earlier = [](const LogLine& a, const LogLine& b) { return a.time < b.time; };
  if (!std::is_sorted(lines.begin(), lines.end(), is_earlier))
    std::stable_sort(lines.begin(), lines.end(), is_earlier);
  std::vector<LogGroup> groups = std::move(begun);
  const std::hash<std::string> hash;
  std::unordered_map<size_t, size_t> newest;  // newest group of the texts with a hash
  newest.reserve(groups.size() + lines.size());
  for (size_t i = 0; i < groups.size(); ++i) newest[hash(groups[i].first.text)] = i;
  for (LogLine& line : lines) {
    const auto [found, is_new] = newest.try_emplace(hash(line.text), groups.size());
    if (!is_new && groups[found->second].first.text == line.text) {
      LogGroup& group = groups[found->second];
      const double behind = seconds_of_day(line.time) - seconds_of_day(group.first.time);
      // A rank that repeats itself is telling something; only other ranks' copies are folded in.
      if (std::abs(behind) <= 1.0 && group.ranks.insert(line.global_rank).second) continue;
    }
    found->second = groups.size();
    const int global_rank = line.global_rank;
    groups.push_back({std::move(line), {global_rank}});
  }
  return groups;
}

std::string render(const LogGroup& group, bool colour) {
  constexpr int kColours[] = {36, 32, 33, 35, 34, 96, 92, 93};
  const std::string prefix = group.ranks.size() > 1 ? fmt::format("[{} ranks]", group.ranks.size())
                                                    : fmt::format("[{}:{}]", base::visible(group.first.node),
                                                                  group.first.global_rank);
  const std::string text = base::visible(group.first.text);
  if (!colour) return prefix + " " + text;
  return fmt::format("\x1b[{}m{}\x1b[0m {}",
                     group.ranks.size() > 1 ? 1 : kColours[group.first.global_rank % 8], prefix, text);
}

}  // namespace shardrun::launcher
