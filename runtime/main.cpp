// shardrun-rank: one rank of a job, started by shardrun's local scheduler, by srun or by mpirun. With the name of a
// tool as first argument it becomes that tool, which shardrun starts for a verb that needs the runtime.
//
// It is linked statically: whatever it would load, each rank of a job would load before its program (docs/decisions/0123). The
// trainer and the tools are another program, runtime/runtime_main.cpp.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"
#include "runtime/rank/rank_main.h"

namespace {

namespace base = shardrun::base;

// Returns where the trainer and the tools lie: beside the program's own folder.
base::Result<std::string> runtime_program() {
  std::string program(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", program.data(), program.size());
  if (length < 0) return base::errno_error(base::Code::kIo, "/proc/self/exe", errno);
  program.resize(static_cast<size_t>(length));
  return program.substr(0, program.rfind('/')) + "/../lib/shardrun/shardrun-rank";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("shardrun-rank " SHARDRUN_VERSION);
    return shardrun::contract::kExitDone;
  }
  if (argc == 1) return shardrun::rank::run_rank(runtime_program);
  auto runtime = runtime_program();
  if (runtime) {
    ::execv(runtime->c_str(), argv);
    runtime = base::errno_error(base::Code::kIo, *runtime, errno);
  }
  fmt::print(stderr, "shardrun-rank: {}\n", runtime.error().to_string());
  return shardrun::contract::exit_code_of(runtime.error().code());
}
