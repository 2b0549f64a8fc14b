#include "runtime/rank/setup.h"

namespace shardrun::rank {
namespace {

// Is the same for every job: $1 is the number of lines, behind which come the lines and the command.
constexpr const char* kScript = R"bash(
shardrun_lines=("${@:2:$1}")
shardrun_command=("${@:2+$1}")
set --
if ! type module >/dev/null 2>&1; then
  for shardrun_file in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh; do
    if [ -r "$shardrun_file" ]; then . "$shardrun_file"; break; fi
  done
fi
for shardrun_line in "${shardrun_lines[@]}"; do
  eval "$shardrun_line"
  shardrun_code=$?
  if [ "$shardrun_code" -ne 0 ]; then
    printf 'shardrun: setup ended with %s: %s\n' "$shardrun_code" "$shardrun_line" >&2
    exit 2
  fi
done
exec "${shardrun_command[@]}"
)bash";

}  // namespace

std::vector<std::string> behind_setup(const std::vector<std::string>& lines,
                                      const std::vector<std::string>& command) {
  if (lines.empty()) return command;
  std::vector<std::string> argv = {"bash", "-c", kScript, "shardrun-setup", std::to_string(lines.size())};
  argv.insert(argv.end(), lines.begin(), lines.end());
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

}  // namespace shardrun::rank
