// libshardrun_runtime.so: the one symbol through which shardrun-rank reaches the trainer and the tools.
#include "runtime/module.h"

#include <array>
#include <cstdio>

#include "runtime/contract/exit_code.h"
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

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const shardrun::Module shardrun_runtime;
const shardrun::Module shardrun_runtime = {{SHARDRUN_VERSION}, shardrun::train::run_trainer, run_tool};
}
