// shardrun-rank: one rank of a job, started by shardrun's local scheduler, by srun or by mpirun. With the name of a
// tool as first argument it is that tool, which shardrun starts for a verb that needs the runtime.
#include <array>
#include <cstdio>
#include <span>
#include <string_view>

#include "runtime/contract/exit_code.h"
#include "runtime/rank/rank_main.h"
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

}  // namespace

int main(int argc, char** argv) {
  namespace contract = shardrun::contract;
  if (argc == 1) return shardrun::rank::run_rank(shardrun::train::run_trainer);
  const std::string_view first = argv[1];
  if (argc == 2 && first == "--version") {
    std::puts("shardrun-rank " SHARDRUN_VERSION);
    return contract::kExitDone;
  }
  for (const Tool& tool : kTools)
    if (tool.name == first) return tool.run(std::span(argv, argc).subspan(2));
  std::fputs("shardrun-rank is started by shardrun, which has the verbs for people; see shardrun --help\n",
             stderr);
  return contract::kExitBadInput;
}
