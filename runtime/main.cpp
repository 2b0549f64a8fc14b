// shardrun-rank: one rank of a job, started by shardrun's local scheduler, by srun or by mpirun. With the name of a
// tool as first argument it is that tool, which shardrun starts for a verb that needs the runtime.
#include <cstdio>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"
#include "runtime/module.h"
#include "runtime/rank/binding.h"
#include "runtime/rank/rank_main.h"

namespace {

namespace contract = shardrun::contract;

int fail(const shardrun::base::Error& error) {
  fmt::print(stderr, "shardrun-rank: {}\n", error.to_string());
  return contract::exit_code_of(error.code());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    return shardrun::rank::run_rank(
        [](const auto& env, const auto& spec, const auto& plan, contract::ProgressPage& progress) {
          const auto module = shardrun::load_module();
          return module ? (*module)->run_trainer(env, spec, plan, progress) : fail(module.error());
        });
  }
  const std::string_view first = argv[1];
  if (argc == 2 && first == "--version") {
    std::puts("shardrun-rank " SHARDRUN_VERSION);
    return contract::kExitDone;
  }
  // What a supervisor holds, its program holds, too, and hwloc is most of that.
  if (first == "footprint") (void)shardrun::rank::choose_binding(0, 1, 1);
  const auto module = shardrun::load_module();
  return module ? (*module)->run_tool(first, std::span(argv, argc).subspan(2)) : fail(module.error());
}
