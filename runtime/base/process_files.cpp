#include "runtime/base/process_files.h"

#include <charconv>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/text.h"

namespace shardrun::base {
namespace {

// Returns nullopt for a word that is not such a number from its beginning to its end.
template <typename Number>
std::optional<Number> number_in(std::string_view word) {
  Number number = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (failure != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  constexpr int kNeeded = 22, kLast = 51;
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string_view::npos) return std::nullopt;
  text.remove_prefix(name_end + 2);
  if (text.ends_with('\n')) text.remove_suffix(1);
  ProcessStat stat;
  const std::string_view state = take_until(text, ' ');
  if (state.size() != 1) return std::nullopt;
  stat.state = state.front();
  const auto parent = number_in<pid_t>(take_until(text, ' '));
  if (!parent || *parent < 0) return std::nullopt;
  stat.parent = *parent;
  for (int field = 5; field <= kLast; ++field) {
    if (text.empty() && field > kNeeded) break;  // an older kernel ends here
    const std::string_view word = take_until(text, ' ');
    uint64_t* const wanted = field == 9    ? &stat.flags
                             : field == 22 ? &stat.start_time
                             : field == 26 ? &stat.code_begin
                             : field == 50 ? &stat.environment
                             : field == 51 ? &stat.environment_end
                                           : nullptr;
    if (wanted == nullptr) continue;
    const auto number = number_in<uint64_t>(word);
    if (!number) return std::nullopt;
    *wanted = *number;
  }
  return stat;
}

Result<ProcessStat> read_process_stat(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  ASSIGN_OR_RETURN(const std::string text, read_file(path, /*limit_bytes=*/4096));
  if (const auto stat = parse_process_stat(text)) return *stat;
  return Error(Code::kCorrupt, path + ": is not as proc(5) describes it");
}

std::vector<pid_t> parse_children(std::string_view text) {
  std::vector<pid_t> children;
  while (!text.empty()) {
    const std::string_view word = take_until(text, ' ');
    if (word.empty()) continue;
    const auto child = number_in<pid_t>(word);
    if (!child || *child <= 0) break;
    children.push_back(*child);
  }
  return children;
}

int64_t parse_resident_pages(std::string_view text) {
  constexpr int64_t kMost = int64_t{1} << 50;  // so that bytes of many can be added
  (void)take_until(text, ' ');
  const auto pages = number_in<int64_t>(take_until(text, ' '));
  return pages && *pages > 0 && *pages <= kMost ? *pages : 0;
}

}  // namespace shardrun::base
