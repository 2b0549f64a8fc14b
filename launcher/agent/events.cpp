#include "launcher/agent/events.h"

#include <fcntl.h>

#include "runtime/base/io.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/epoch.h"

namespace shardrun::launcher {

void write_event(const record::RunDir& run, int attempt, record::EventLine line) {
  if (!contract::check_epoch(run, attempt)) return;
  line.time = base::unix_now();
  line.attempt = attempt;
  const base::UniqueFd fd(
      ::open(run.events_jsonl().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, record::kFileMode));
  if (!fd) return;
  (void)base::write_all(fd.get(), to_json(line), run.events_jsonl());
}

}  // namespace shardrun::launcher
