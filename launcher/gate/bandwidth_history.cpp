#include "launcher/gate/bandwidth_history.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/io.h"
#include "runtime/base/median.h"
#include "runtime/base/state_folder.h"
#include "runtime/base/trust.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Result;

std::string folder_of(const std::string& path) {
  return path.substr(0, path.find_last_of('/'));
}

std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    out += good || c == '.' || c == '_' ? c : '_';
  }
  return out.empty() ? "_" : out;
}

Result<std::vector<double>> read_history(const std::string& path) {
  RETURN_IF_ERROR(base::make_directories(folder_of(path), 0700));
  RETURN_IF_ERROR(base::refuse_if_others_write(folder_of(path)));
  const auto text = base::read_file(path, /*limit_bytes=*/1 << 16);
  if (!text && text.error().code() == Code::kNotFound) return std::vector<double>();
  if (!text) return text.error();
  return bandwidths_in(*text);
}

}  // namespace

Result<std::string> history_path(const LaunchKind& kind) {
  ASSIGN_OR_RETURN(const auto folder, base::state_folder());
  return fmt::format("{}/bandwidth/{}-{}-{}x{}-{}", folder, plain(kind.cluster), plain(kind.partition),
                     kind.nodes, kind.ranks_per_node, plain(kind.provider));
}

std::vector<double> bandwidths_in(const std::string& text) {
  std::vector<double> values;
  std::istringstream lines(text);
  for (double value = 0.0; lines >> value;) {
    if (value >= 1.0) values.push_back(value);
  }
  return values;
}

std::string history_text(std::span<const double> values) {
  std::string text;
  for (const double value : values) text += fmt::format("{:.0f}\n", value);
  return text;
}

Result<std::optional<double>> usual_bandwidth(const std::string& path) {
  ASSIGN_OR_RETURN(auto values, read_history(path));
  if (values.empty()) return std::optional<double>{};
  return std::optional<double>(base::lower_median(std::move(values)));
}

Result<void> remember_bandwidth(const std::string& path, double bytes_per_second) {
  ASSIGN_OR_RETURN(auto values, read_history(path));
  values.push_back(bytes_per_second);
  const size_t old = values.size() - std::min(values.size(), kKept);
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(old));
  return base::write_file_atomically(path, history_text(values), 0600, base::Durability::kProcess);
}

}  // namespace shardrun::launcher
