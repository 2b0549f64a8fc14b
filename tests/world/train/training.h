// Shared by the world tests of the trainer: a tiny Llama on a tiny text, on N ranks that are threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/contract/heartbeat.h"
#include "runtime/trainer/comm/forwarding_communicator.h"
#include "runtime/trainer/train/loop.h"
#include "runtime/trainer/train/session.h"
#include "tests/support/folder.h"

namespace training {

using namespace shardrun;

using tests::Folder;

// Returns options of two layers, hidden 32, sequences of 16, fp32, and a global batch of 12 on `world_size` ranks
// with micro-batches of `micro_batch`.
train::SessionOptions tiny_options(const Folder& folder, int world_size, int64_t micro_batch = 1);

// Returns the sizes of options of a Llama.
inline model::LlamaConfig& config_of(train::SessionOptions& options) {
  return std::get<model::LlamaConfig>(options.model);
}

// What one rank brings back from a run.
struct RankRun {
  std::vector<double> losses;  // losses of the steps
  std::vector<int64_t> steps_without_targets;
  std::optional<double> validation_loss;
  std::vector<double> evaluation_losses;
  std::vector<double> validation_losses;  // of every validation
  std::optional<checkpoint::BestLoss> best;
  bool stopped = false, ended_early = false;
  std::string checkpoint;
  std::vector<int64_t> saved_steps;
  std::vector<std::string> lost_saves;  // "4: why"
  std::vector<std::string> notices;     // notices of the resume
  std::optional<std::string> resumed_from;
  std::string error;  // empty when all went well
  base::Code error_code = base::Code::kIo;
};

struct RunOptions {
  train::LoopOptions loop;
  // A run resumes from it when it holds a checkpoint; empty: one that goes away.
  std::string checkpoint_directory;
  int keep = 10;
  int64_t stop_at_step = -1;  // requested on the last rank only, during this step
  int shard_degree = 0;       // 0: all data-parallel ranks
  int tensor_parallel = 1;
  int context_parallel = 1;
  int pipeline_parallel = 1, virtual_stages = 1;
  contract::ProgressPage* page = nullptr;  // where rank 0 notes its progress
};

RunOptions steps(int64_t count);
void require_success(const std::vector<RankRun>& runs);
// Checks that the losses of training and held-out data are one rank's within 1e-5, and that every rank tells the same.
void check_follows(const std::vector<RankRun>& runs, const std::vector<RankRun>& alone);
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

enum class Group { kReduce, kReplica, kTensor, kExperts, kContext, kStages };
// Wraps a rank's communicator of one group, to plant bugs in; null leaves it as it is.
using Decorate = std::function<std::unique_ptr<comm::Communicator>(Group, comm::Communicator&)>;

// Runs every rank in a thread of its own and returns what each brought back, in rank order.
std::vector<RankRun> run_world(int world_size, const train::SessionOptions& options, const RunOptions& run,
                               const Decorate& decorate = {});

using comm::ForwardingCommunicator;  // to spoil some operations of

// Plants on one link between stages, of whichever rank comes first, that its seventh message finds the peer lost.
Decorate one_lost_link();

}  // namespace training
