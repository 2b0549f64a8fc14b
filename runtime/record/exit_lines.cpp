#include "runtime/record/exit_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/shared_folder.h"
#include "runtime/base/text.h"

namespace shardrun::record {

Result<void> append_rank_exit(const RunDir& run, int attempt, const RankExit& exit) {
  const std::string path = run.node_exits(attempt, exit.node);
  const std::string line = to_line(exit);
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kFileMode));
  if (!fd) return base::errno_error(base::Code::kIo, path, errno);
  const ssize_t written = ::write(fd.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return base::close_written(std::move(fd), path);
  return base::errno_error(base::Code::kIo, "writing " + path, written < 0 ? errno : ENOSPC);
}

std::map<int, RankExit> parse_rank_exits(std::string_view text) {
  std::map<int, RankExit> exits;
  while (!text.empty()) {
    std::string_view line = base::take_line(text);
    // A line begins with its format_version, whose quote has a backslash before it wherever it stands inside a string.
    if (const size_t begin = line.rfind("{\"format_version\""); begin != std::string_view::npos)
      line.remove_prefix(begin);
    if (auto exit = parse_rank_exit(line)) exits[exit->global_rank] = std::move(*exit);
  }
  return exits;
}

std::map<int, RankExit> read_rank_exits(const RunDir& run, int attempt) {
  namespace fs = std::filesystem;
  std::map<int, RankExit> exits;
  base::look_afresh(run.attempt(attempt));
  std::error_code failure;
  for (fs::directory_iterator entry(run.attempt(attempt), failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string& name = entry->path().native();
    if (!name.ends_with(".exits") && !name.ends_with(".exit.json")) continue;
    const auto text = base::read_file(name);
    if (!text) continue;
    if (name.ends_with(".exits")) {
      exits.merge(parse_rank_exits(*text));
    } else if (auto exit = parse_rank_exit(*text)) {
      exits.emplace(exit->global_rank, std::move(*exit));
    }
  }
  return exits;
}

std::map<int, RankExit> read_rank_exits(const RunDir& run, int attempt, const std::set<std::string>& nodes) {
  std::map<int, RankExit> exits;
  base::look_afresh(run.attempt(attempt));
  for (const std::string& node : nodes)
    if (const auto text = base::read_file(run.node_exits(attempt, node)))
      exits.merge(parse_rank_exits(*text));
  return exits;
}

}  // namespace shardrun::record
