#include "runtime/tools/precompile_tool.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"
#include "runtime/train/kernel_setup.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;
using base::Result;

int cpus_of_process() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Result<void> precompile(const std::string& spec_path, const std::vector<std::string>& overrides, bool retry) {
  const auto spec = contract::load_job_spec(spec_path, overrides);
  if (!spec) return spec.error();
  if (spec->program.trainer.empty()) {
    return Error(Code::kInvalid, spec->origin("program") +
                                     ": only the built-in trainer has kernels to compile; a command program "
                                     "names its own compiler in [precompile] command");
  }
  train::KernelSetup setup;
  setup.working_directory = std::filesystem::current_path().string();
  setup.cpus = cpus_of_process();
  if (const auto place = contract::read_rank_env(contract::process_environment())) {
    setup.local_rank = place->local_rank;
    setup.ranks_on_node = place->local_world_size;
  }
  const auto done = train::compile_kernels(*spec, setup, retry);
  if (!done) return done.error();
  fmt::print("kernels: {} ready, {} of them compiled here in {:.1f} s\n", done->kernels.size(),
             done->compiled, done->compile_seconds);
  return {};
}

}  // namespace

int run_precompile_tool(std::span<char* const> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  if (words.empty()) {
    std::fputs("usage: shardrun-rank precompile SPEC [--retry] [SECTION.KEY=VALUE ...]\n", stderr);
    return contract::kExitBadInput;
  }
  const std::string spec_path = words.front();
  words.erase(words.begin());
  const bool retry = !words.empty() && words.front() == "--retry";
  if (retry) words.erase(words.begin());
  const auto done = precompile(spec_path, words, retry);
  if (done) return contract::kExitDone;
  fmt::print(stderr, "shardrun: error: {}\n", done.error().to_string());
  return done.error().code() == Code::kInvalid ? contract::kExitBadInput : contract::kExitProgramFailed;
}

}  // namespace shardrun::tools
