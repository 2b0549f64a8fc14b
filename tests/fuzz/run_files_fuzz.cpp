// Runs libFuzzer over what processes of a run leave for each other: locks, epochs, events, output with its times, and the cards
// that ranks exchange; over the bandwidths of earlier runs; and over what scontrol says of a job. What is accepted comes back
// the same from what we would write.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "launcher/agent/conductor_lock.h"
#include "launcher/gate/bandwidth_history.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/view/rank_output.h"
#include "launcher/view/timeline.h"
#include "runtime/base/result.h"
#include "runtime/contract/epoch.h"
#include "runtime/record/output_marks.h"
#include "runtime/record/run_lines.h"
#include "runtime/trainer/comm/rank_card.h"

using namespace shardrun;

namespace {

// One folder for the whole process, which goes with it.
struct Folder {
  Folder() {
    SHARDRUN_CHECK(::mkdtemp(path.data()) != nullptr);
    std::filesystem::create_directory(path + "/attempt_0");
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = "/dev/shm/run_files_fuzz.XXXXXX";
};

void put(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

void check_lock(const std::string& text) {
  const auto holder = launcher::parse_holder(text, "conductor.lock");
  if (!holder) return;
  SHARDRUN_CHECK(holder->pid > 1);
  (void)launcher::describe(*holder);
  if (holder->pid_namespace.empty()) return;  // an older one, or one that was cut off, lacks fields
  const auto again = launcher::parse_holder(launcher::to_text(*holder), "conductor.lock");
  SHARDRUN_CHECK(again.has_value() && launcher::to_text(*again) == launcher::to_text(*holder));
}

void check_bandwidths(const std::string& text) {
  const auto values = launcher::bandwidths_in(text);
  for (const double value : values) SHARDRUN_CHECK(value >= 1.0 && std::isfinite(value));
  const std::string written = launcher::history_text(values);
  const auto again = launcher::bandwidths_in(written);
  SHARDRUN_CHECK(again.size() == values.size() && launcher::history_text(again) == written);
}

void check_events(std::string_view text) {
  for (const record::EventLine& line : record::parse_events(text)) {
    const std::string written = record::to_json(line);
    const auto again = record::parse_events(written);
    SHARDRUN_CHECK(again.size() == 1 && record::to_json(again.front()) == written);
  }
  launcher::TimelineSources sources;
  sources.events.add(text);
  sources.training.add(text);
  sources.record.attempts.resize(1);
  (void)launcher::render_timeline(launcher::make_timeline(sources));
}

// The input is the times of a rank whose output is the input, too.
void check_output(const record::RunDir& run, const std::string& text) {
  if (const auto head = record::parse_output_head(text)) {
    const std::string line = record::to_line(*head);
    SHARDRUN_CHECK(record::parse_output_head(std::string_view(line).substr(0, line.size() - 1))->node ==
                   head->node);
  }
  put(run.rank_times(0, 0), text);
  put(run.rank_out(0, 0), text);
  put(run.rank_err(0, 0), text);
  launcher::RankOutput output(run, 0, 0);
  size_t bytes = 0;
  for (const bool to_the_end : {false, true}) {
    output.see({0}, to_the_end);
    for (launcher::LogLine line; output.next(line);) bytes += line.text.size();
  }
  SHARDRUN_CHECK(bytes <= 4 * text.size() + 4096);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder kFolder;
  const record::RunDir run{kFolder.path};
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_lock(text);
  check_bandwidths(text);
  put(run.epoch(), text);
  if (const auto epoch = contract::read_epoch(run)) SHARDRUN_CHECK(*epoch >= 0);
  (void)contract::check_epoch(run, 1);
  check_events(text);
  check_output(run, text);
  if (const auto card = comm::unpack_card(text, 3)) {
    uint32_t node_index = 0;
    std::memcpy(&node_index, text.data(), sizeof node_index);
    SHARDRUN_CHECK(comm::pack_card(static_cast<int>(node_index), card->node_name, card->address) == text);
  }
  for (const char* key : {"JobState", "Reason", ""})
    SHARDRUN_CHECK(launcher::scontrol_field(text, key).find(' ') == std::string::npos);
  return 0;
}
