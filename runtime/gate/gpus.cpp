#include "runtime/gate/gpus.h"

#include <sys/wait.h>

#include <charconv>
#include <chrono>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "runtime/base/command.h"
#include "runtime/base/text.h"

namespace shardrun::gate {
namespace {

using base::Code;
using base::Error;
using base::Result;

// A driver without its persistence daemon takes seconds to load.
constexpr std::chrono::seconds kPatience{20};
// They are tried in this order until the driver knows every field; before release 535 the reasons had another name.
constexpr std::string_view kOfGpus[] = {
    "--query-gpu=index,name,gpu_uuid,ecc.errors.uncorrected.volatile.total,clocks_event_reasons.hw_slowdown",
    "--query-gpu=index,name,gpu_uuid,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_"
    "slowdown",
    "--query-gpu=index,name"};
// These are no fields of a GPU, so they need a query of their own.
constexpr std::string_view kOfRows =
    "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure";

Result<base::CommandOutput> ask(std::string_view question) {
  return base::finish_command({"nvidia-smi", std::string(question), "--format=csv,noheader,nounits"}, "",
                              kPatience);
}

bool ended_well(const base::CommandOutput& output) {
  return WIFEXITED(output.status) && WEXITSTATUS(output.status) == 0;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(base::trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// Reads a number such as "7"; 0 for what is not a number, such as the "[N/A]" of a GPU that does not count.
int64_t count_of(std::string_view text) {
  int64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

// Drivers write it in either way.
bool is_yes(std::string_view text) {
  return text == "Yes" || text == "1";
}

void note_rows(record::GpuFacts& gpu, std::string_view uuid, std::string_view rows) {
  for (const std::string_view line : split(rows, '\n')) {
    const std::vector<std::string_view> fields = split(line, ',');
    if (fields.size() < 3 || fields[0] != uuid) continue;
    if (is_yes(fields[1])) gpu.faults.emplace_back("rows of its memory wait for a reset to be remapped");
    if (is_yes(fields[2])) gpu.faults.emplace_back("a row of its memory could not be remapped");
  }
}

}  // namespace

std::vector<record::GpuFacts> parse_gpus(std::string_view csv, std::string_view rows) {
  std::vector<record::GpuFacts> gpus;
  for (const std::string_view line : split(csv, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = split(line, ',');
    record::GpuFacts gpu;
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
    if (fields.size() > 4) {
      if (const int64_t errors = count_of(fields[3]); errors > 0)
        gpu.faults.push_back(fmt::format("{} uncorrected memory errors", errors));
      if (fields[4] == "Active") gpu.faults.emplace_back("slowed down by its hardware (heat or power)");
      note_rows(gpu, fields[2], rows);
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Result<std::vector<record::GpuFacts>> find_gpus() {
  auto gpus = ask(kOfGpus[0]);
  for (size_t next = 1; next < std::size(kOfGpus); ++next) {
    if (!gpus || ended_well(*gpus) || (gpus->out + gpus->err).find("not a valid field") == std::string::npos)
      break;
    gpus = ask(kOfGpus[next]);
  }
  RETURN_IF_ERROR(gpus);
  if (!ended_well(*gpus))
    return Error(Code::kIo,
                 fmt::format("nvidia-smi: {}{}", base::trimmed(gpus->out), base::trimmed(gpus->err)));
  const auto rows = ask(kOfRows);  // not every driver answers this
  return parse_gpus(gpus->out, rows && ended_well(*rows) ? std::string_view(rows->out) : "");
}

}  // namespace shardrun::gate
