#include "launcher/agent/events.h"

#include <fcntl.h>

#include <chrono>

#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/contract/epoch.h"

namespace shardrun::launcher {

void write_event(const record::RunDir& run, int attempt, const std::string& event,
                 const nlohmann::json& members) {
  if (!contract::check_epoch(run, attempt)) return;
  nlohmann::ordered_json line = {
      {"time", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"event", event},
      {"attempt", attempt}};
  for (const auto& [key, value] : members.items()) line[key] = value;
  const base::UniqueFd fd(
      ::open(run.events_jsonl().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return;
  (void)base::write_all(fd.get(), base::json_text(line) + "\n", run.events_jsonl());
}

}  // namespace shardrun::launcher
