#include "runtime/gate/gpus.h"

#include <sys/wait.h>

#include <charconv>
#include <chrono>
#include <string>

#include <fmt/format.h>

#include "runtime/base/command.h"

namespace shardrun::gate {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr std::chrono::seconds kPatience{
    20};  // a driver without its persistence daemon takes seconds to load
constexpr const char* kName = "index,name";
constexpr const char* kHealth =
    "index,name,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,remapped_rows.failure,"
    "clocks_throttle_reasons.hw_slowdown";

Result<base::CommandOutput> ask(const char* fields) {
  return base::finish_command(
      {"nvidia-smi", fmt::format("--query-gpu={}", fields), "--format=csv,noheader,nounits"}, "", kPatience);
}

bool ended_well(const base::CommandOutput& output) {
  return WIFEXITED(output.status) && WEXITSTATUS(output.status) == 0;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view{}
                                         : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// Of "7"; 0 for what is no number, as "[N/A]" of a GPU that does not count.
int64_t count_of(std::string_view text) {
  int64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

}  // namespace

std::vector<contract::GpuFacts> parse_gpus(std::string_view csv) {
  std::vector<contract::GpuFacts> gpus;
  for (const std::string_view line : split(csv, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = split(line, ',');
    contract::GpuFacts gpu;
    gpu.index = static_cast<int>(count_of(fields[0]));
    if (fields.size() > 1) gpu.name = fields[1];
    for (const std::string_view field : fields) {
      if (field.find("GPU is lost") != std::string_view::npos ||
          field.find("Unknown Error") != std::string_view::npos ||
          field.find("Requires Reset") != std::string_view::npos || field == "ERR!") {
        gpu.faults.push_back(fmt::format("the driver says \"{}\"", field));
        break;
      }
    }
    if (fields.size() > 5) {
      if (const int64_t errors = count_of(fields[2]); errors > 0)
        gpu.faults.push_back(fmt::format("{} uncorrected memory errors", errors));
      if (fields[3] == "Yes") gpu.faults.emplace_back("rows of its memory wait for a reset to be remapped");
      if (fields[4] == "Yes") gpu.faults.emplace_back("a row of its memory could not be remapped");
      if (fields[5] == "Active") gpu.faults.emplace_back("slowed down by its hardware (heat or power)");
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Result<std::vector<contract::GpuFacts>> find_gpus() {
  auto answer = ask(kHealth);
  if (answer && !ended_well(*answer) && answer->out.find("not a valid field") != std::string::npos)
    answer = ask(kName);
  if (!answer) return std::move(answer).error();
  if (!ended_well(*answer)) {
    return Error(Code::kIo, fmt::format("nvidia-smi: {}{}", trimmed(answer->out), trimmed(answer->err)));
  }
  return parse_gpus(answer->out);
}

}  // namespace shardrun::gate
