#include "runtime/contract/exit_code.h"

#include <signal.h>
#include <string.h>

#include <fmt/format.h>

namespace shardrun::contract {

bool ended_as_asked(const record::RankExit& exit) {
  return exit.exit_code == kExitPreempted || exit.signal == SIGTERM;
}

int exit_code_of(base::Code code) {
  switch (code) {
    case base::Code::kInvalid:
    case base::Code::kNotFound:
    case base::Code::kUnsupported:
    case base::Code::kCorrupt:
      return kExitBadInput;
    case base::Code::kRefused:
      return kExitRefused;
    case base::Code::kIo:
    case base::Code::kTimeout:
    case base::Code::kPeerLost:
    case base::Code::kCancelled:
      return kExitInfrastructure;
  }
  return kExitInfrastructure;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace shardrun::contract
