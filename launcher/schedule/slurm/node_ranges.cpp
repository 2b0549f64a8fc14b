#include "launcher/schedule/slurm/node_ranges.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardrun::launcher {
namespace {

constexpr size_t kMostDigits = 9;  // of a number that fits; longer ones are part of the name

// What nodes of one bracket share, and the number that tells them apart.
struct Series {
  std::string prefix;
  size_t width;  // 0: numbers without zeros in front
  auto operator<=>(const Series&) const = default;
};

std::pair<Series, int> take_apart(const std::string& name) {
  size_t digits = 0;
  while (digits < std::min(name.size(), kMostDigits) && name[name.size() - digits - 1] >= '0' &&
         name[name.size() - digits - 1] <= '9')
    ++digits;
  if (digits == 0) return {{name, 0}, -1};
  const char* const first = name.data() + name.size() - digits;
  int number = 0;
  std::from_chars(first, name.data() + name.size(), number);
  return {{name.substr(0, name.size() - digits), *first == '0' && digits > 1 ? digits : 0}, number};
}

std::string range(int first, int last, size_t width) {
  return first == last ? fmt::format("{:0{}}", first, width)
                       : fmt::format("{:0{}}-{:0{}}", first, width, last, width);
}

// `numbers` are in ascending order.
std::string bracket(const Series& series, const std::vector<int>& numbers) {
  if (numbers.size() == 1) return series.prefix + range(numbers[0], numbers[0], series.width);
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] <= numbers[last] + 1) ++last;
    ranges.push_back(range(numbers[i], numbers[last], series.width));
    i = last + 1;
  }
  return fmt::format("{}[{}]", series.prefix, fmt::join(ranges, ","));
}

}  // namespace

std::string node_ranges(std::span<const std::string> names) {
  std::map<Series, std::vector<int>> series;
  std::vector<std::string> words;
  for (const std::string& name : names) {
    auto [shared, number] = take_apart(name);
    if (number < 0)
      words.push_back(name);
    else
      series[std::move(shared)].push_back(number);
  }
  for (auto& [shared, numbers] : series) {
    std::sort(numbers.begin(), numbers.end());
    words.push_back(bracket(shared, numbers));
  }
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace shardrun::launcher
