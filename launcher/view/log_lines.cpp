#include "launcher/view/log_lines.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

// Seconds of a UTC time's minute and its fraction; enough to tell whether two near times lie within a second.
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

std::vector<LogGroup> collapse(std::vector<LogLine> lines) {
  std::stable_sort(lines.begin(), lines.end(),
                   [](const LogLine& a, const LogLine& b) { return a.time < b.time; });
  struct Open {
    size_t group;
    double since;
    std::set<int> ranks;
  };
  std::vector<LogGroup> groups;
  std::map<std::string, Open> open;  // by text: the newest group of it
  for (LogLine& line : lines) {
    const double now = seconds_of_day(line.time);
    const auto found = open.find(line.text);
    // A rank that repeats itself is telling something; only other ranks' copies are folded in.
    if (found != open.end() && now - found->second.since <= 1.0 && now >= found->second.since &&
        found->second.ranks.insert(line.global_rank).second) {
      ++groups[found->second.group].ranks;
      continue;
    }
    open[line.text] = Open{groups.size(), now, {line.global_rank}};
    groups.push_back({std::move(line), 1});
  }
  return groups;
}

std::string render(const LogGroup& group, bool colour) {
  constexpr int kColours[] = {36, 32, 33, 35, 34, 96, 92, 93};
  const std::string prefix =
      group.ranks > 1 ? fmt::format("[{} ranks]", group.ranks)
                      : fmt::format("[{}:{}]", escape_control(group.first.node), group.first.global_rank);
  const std::string text = escape_control(group.first.text);
  if (!colour) return prefix + " " + text;
  return fmt::format("\x1b[{}m{}\x1b[0m {}", group.ranks > 1 ? 1 : kColours[group.first.global_rank % 8],
                     prefix, text);
}

std::string escape_control(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += c;
    }
  }
  return shown;
}

}  // namespace shardrun::launcher
