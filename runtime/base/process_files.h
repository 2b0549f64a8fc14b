// What the kernel says of a process in files of /proc (proc(5)): which process of which parent it is, what it does, its children
// and its memory.
//
// Thread rule: parse_*() are pure functions; read_process_stat() reads a file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::base {

// Of /proc/<pid>/stat, by the number of its field there.
struct ProcessStat {
  char state = '?';    // 3: R runs or waits for a CPU, D waits for a file, T is stopped, Z and X have ended
  pid_t parent = 0;    // 4
  uint64_t flags = 0;  // 9
  uint64_t start_time =
      0;  // 22, in ticks since the machine started: two processes with the same pid never share it
  uint64_t code_begin = 0;       // 26; 0 until the program is whole, or where the kernel does not tell
  uint64_t environment = 0;      // 50, its first address
  uint64_t environment_end = 0;  // 51

  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

// Returns nullopt for what is no such file, or ends before field 22. The program's name may hold anything, also what looks like
// fields.
std::optional<ProcessStat> parse_process_stat(std::string_view text);
// kNotFound when there is no such process; kCorrupt when nobody can tell; kIo.
Result<ProcessStat> read_process_stat(pid_t pid);

// Reads /proc/<pid>/task/<tid>/children, up to what is no process.
std::vector<pid_t> parse_children(std::string_view text);
// Returns the pages in RAM that /proc/<pid>/statm tells; 0 where it does not.
int64_t parse_resident_pages(std::string_view text);

}  // namespace shardrun::base
