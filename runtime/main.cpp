// shardrun-rank: one rank of a job. Started by shardrun's local scheduler, by srun or by mpirun.
#include <cstdio>
#include <string_view>

#include "runtime/contract/exit_code.h"
#include "runtime/rank/rank_main.h"
#include "runtime/train/trainer.h"

int main(int argc, char** argv) {
  namespace contract = shardrun::contract;
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("shardrun-rank " SHARDRUN_VERSION);
    return contract::kExitDone;
  }
  if (argc != 1) {
    std::fputs("shardrun-rank takes no arguments; shardrun run and shardrun submit start it\n", stderr);
    return contract::kExitBadInput;
  }
  return shardrun::rank::run_rank(shardrun::train::run_trainer);
}
