#include "launcher/cluster/queues.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(at, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Parses a number; sinfo writes "96+" for nodes of different sizes.
bool number(std::string_view text, int64_t& out) {
  if (text.ends_with('+')) text.remove_suffix(1);
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failure == std::errc() && end == text.data() + text.size() && out >= 0 && out < (int64_t{1} << 30);
}

// Returns the count to which nodes in a state such as "idle~" belong. The last character means: ~ given back, #
// starting, % and ! going away, * not answering, $ and @ in maintenance or rebooting.
int& count_of(QueueState& queue, std::string_view state) {
  const char mark = state.empty() ? ' ' : state.back();
  const auto is = [&](std::string_view word) { return state.starts_with(word); };
  if (mark == '*' || is("down") || is("drain") || is("drng") || is("fail") || is("maint") || is("unk") ||
      is("boot"))
    return queue.out;
  if (mark == '~') return queue.on_demand;
  if (mark == '#') return queue.starting;
  if (mark == '%' || mark == '!') return queue.out;
  if (is("idle")) return queue.idle;
  return queue.busy;
}

}  // namespace

std::vector<std::string> queues_command() {
  return {"sinfo", "--noheader", "--format=%P|%a|%l|%D|%t|%c|%m"};
}

Result<std::vector<QueueState>> parse_queues(std::string_view text) {
  std::vector<QueueState> queues;
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty()) continue;
    const auto parts = split(line, '|');
    int64_t nodes = 0, cpus = 0, memory = 0;
    if (parts.size() != 7 || parts[0].empty() || !number(parts[3], nodes) || !number(parts[5], cpus) ||
        !number(parts[6], memory))
      return Error(Code::kCorrupt,
                   fmt::format("sinfo wrote \"{}\", which is no line of queues", spec::printable(line)));
    const bool is_default = parts[0].ends_with('*');
    const std::string name = spec::printable(is_default ? parts[0].substr(0, parts[0].size() - 1) : parts[0]);
    auto found =
        std::find_if(queues.begin(), queues.end(), [&](const auto& one) { return one.name == name; });
    if (found == queues.end()) {
      QueueState queue;
      queue.name = name;
      queue.is_default = is_default;
      queue.up = parts[1] == "up";
      queue.time_limit = spec::printable(parts[2]);
      found = queues.insert(queues.end(), queue);
    }
    int& count = count_of(*found, parts[4]);
    count = static_cast<int>(std::min<int64_t>(count + nodes, 1 << 30));
    found->cpus = std::max(found->cpus, static_cast<int>(cpus));
    found->memory_mib = std::max(found->memory_mib, memory);
  }
  return queues;
}

std::string queues_table(const std::vector<QueueState>& queues) {
  if (queues.empty()) return "no queues\n";
  size_t width = 5;
  for (const QueueState& queue : queues) width = std::max(width, queue.name.size() + 1);
  std::string out =
      fmt::format("{:<{}}  {:>5} {:>5} {:>9} {:>10} {:>4}  {:>5} {:>9}  {}\n", "queue", width, "busy", "idle",
                  "starting", "on demand", "out", "CPUs", "memory", "time limit");
  for (const QueueState& queue : queues) {
    out += fmt::format("{:<{}}  {:>5} {:>5} {:>9} {:>10} {:>4}  {:>5} {:>5} GiB  {}{}\n",
                       queue.name + (queue.is_default ? "*" : ""), width, queue.busy, queue.idle,
                       queue.starting, queue.on_demand, queue.out, queue.cpus, queue.memory_mib / 1024,
                       queue.time_limit, queue.up ? "" : ", closed");
  }
  return out;
}

}  // namespace shardrun::launcher
