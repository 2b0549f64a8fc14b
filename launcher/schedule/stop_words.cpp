#include "launcher/schedule/stop_words.h"

#include <unistd.h>

#include <string>

#include <fmt/format.h>

#include "runtime/base/say.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

// The terminal's cursor stands behind a bar, or behind the "^C" that the terminal shows.
void tell(const std::string& line) {
  base::say(STDERR_FILENO, fmt::format("{}shardrun: {}\n", ::isatty(STDERR_FILENO) == 1 ? "\n" : "", line));
}

}  // namespace

void tell_of_stop(const StepRequest& request, int signal) {
  tell(fmt::format("{}: the ranks are asked to stop and have {} s for it; once more ends them at once",
                   contract::signal_name(signal), request.spec->fault_tolerance.stop_grace.count()));
}

void tell_of_second_stop() {
  tell("asked again: the ranks are ended at once");
}

}  // namespace shardrun::launcher
