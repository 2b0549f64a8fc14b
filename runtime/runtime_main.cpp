// lib/shardrun/shardrun-rank: the trainer of a rank, which its supervisor starts, and the tools, which bin/shardrun-rank becomes.
//
// What it is linked with takes longer to load than all that a supervisor does, which is therefore another program.
#include <signal.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "runtime/base/trust.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_job.h"
#include "runtime/tools/calibrate_tool.h"
#include "runtime/tools/data_tool.h"
#include "runtime/tools/export_tool.h"
#include "runtime/tools/footprint_tool.h"
#include "runtime/tools/generate_tool.h"
#include "runtime/tools/preflight_tool.h"
#include "runtime/tools/verify_tool.h"
#include "runtime/trainer/train/trainer.h"

namespace {

struct Tool {
  std::string_view name;
  int (*run)(std::span<char* const> arguments);
};
constexpr std::array kTools{
    Tool{"calibrate", shardrun::tools::run_calibrate_tool},
    Tool{"data", shardrun::tools::run_data_tool},
    Tool{"footprint", shardrun::tools::run_footprint_tool},
    Tool{"export", shardrun::tools::run_export_tool},
    Tool{"generate", shardrun::tools::run_generate_tool},
    Tool{"preflight", shardrun::tools::run_preflight_tool},
    Tool{"verify", shardrun::tools::run_verify_tool},
};

int run_tool(std::string_view name, std::span<char* const> arguments) {
  for (const Tool& tool : kTools)
    if (tool.name == name) return tool.run(arguments);
  std::fputs("shardrun-rank is started by shardrun, which has the verbs for people; see shardrun --help\n",
             stderr);
  return shardrun::contract::kExitBadInput;
}

int fail(const shardrun::base::Error& error) {
  fmt::print(stderr, "shardrun-rank: {}\n", error.to_string());
  return shardrun::contract::exit_code_of(error.code());
}

// `arguments` are the version of the supervisor and the descriptor of the page that it shares with us.
int run_trainer(std::span<char* const> arguments) {
  int fd = -1;
  const std::string_view version = arguments[0], number = arguments[1];
  if (version != SHARDRUN_VERSION ||
      std::from_chars(number.data(), number.data() + number.size(), fd).ec != std::errc())
    return fail({shardrun::base::Code::kUnsupported,
                 "the supervisor and the trainer are of different builds: install both from one"});
  // Lines must reach the pipe as they are printed, not when a buffer is full.
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto progress = shardrun::contract::open_shared_progress(fd);
  if (!progress) return fail(progress.error());
  const auto job = shardrun::contract::read_rank_job();
  if (!job) return fail(job.error());
  return shardrun::train::run_trainer(job->env, job->spec, job->plan, **progress);
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // writing past `ulimit -f` is an error that names the file
  if (auto ours = shardrun::base::refuse_if_others_write("/proc/self/exe");
      !ours && ours.error().code() == shardrun::base::Code::kRefused)
    return fail(ours.error());
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  if (argc == 4 && std::string_view(words[1]) == shardrun::contract::kTrainWord)
    return run_trainer(words.subspan(2));
  return argc < 2 ? run_tool("", {}) : run_tool(words[1], words.subspan(2));
}
