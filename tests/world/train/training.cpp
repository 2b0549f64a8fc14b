#include "tests/world/train/training.h"

#include <doctest/doctest.h>
#include <omp.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/counter_random.h"
#include "tests/fakes/thread_world.h"

namespace training {
namespace {

class Recorder : public train::LoopObserver {
 public:
  explicit Recorder(RankRun& run) : run_(run) {}
  void on_step(const train::StepReport& report, double) override { run_.losses.push_back(report.loss); }

 private:
  RankRun& run_;
};

void fail(RankRun& run, const base::Error& error) {
  run.error = error.to_string();
  run.error_code = error.code();
}

void run_rank(int rank, const train::SessionOptions& options, const RunOptions& run_options,
              comm::Communicator& gather, comm::Communicator& reduce, RankRun& run) {
  ::omp_set_num_threads(1);
  auto session = train::Session::create(options, gather, reduce);
  if (!session) return fail(run, session.error());
  train::Session& ours = **session;
  const checkpoint::Store store(run_options.checkpoint_directory, run_options.keep);
  if (!run_options.checkpoint_directory.empty()) {
    auto resumed = ours.resume(store, run.notices);
    if (!resumed) return fail(run, resumed.error());
    run.resumed_from = *resumed;
  }
  const auto stop = [&] {
    return rank == reduce.size() - 1 && ours.steps_done() + 1 == run_options.stop_at_step;
  };
  Recorder recorder(run);
  auto outcome = train::run_loop(ours, store, run_options.loop, stop, recorder);
  if (!outcome) return fail(run, outcome.error());
  run.validation_loss = outcome->validation_loss;
  run.stopped = outcome->stopped;
  run.checkpoint = outcome->checkpoint;
}

}  // namespace

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "shardrun-train-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

Folder::~Folder() {
  std::filesystem::remove_all(path_);
}

std::string Folder::file(const std::string& name, const std::string& text) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  return path_ + "/" + name;
}

std::string prose(int sentences, uint64_t chapter) {
  const std::vector<std::string> who{"the rank", "a node", "the launcher", "one shard", "the master"};
  const std::vector<std::string> does{"sends", "keeps", "waits for", "reads", "sums"};
  const std::vector<std::string> what{"its gradient", "every block", "the next step", "a checkpoint",
                                      "the loss"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    const uint64_t bits = base::random_bits(chapter, static_cast<uint64_t>(i));
    text += who[bits % 5] + " " + does[bits / 5 % 5] + " " + what[bits / 25 % 5] + ".\n";
  }
  return text;
}

train::SessionOptions tiny_options(const Folder& folder, int world_size, int64_t micro_batch) {
  train::SessionOptions options;
  options.model = {.layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .ffn = 48, .vocab = 256};
  options.sequence_length = 16;
  options.micro_batch = micro_batch;
  options.gradient_accumulation = 12 / micro_batch / world_size;
  options.seed = 5;
  options.training_files = {folder.file("training.txt", prose(60, 1))};
  options.validation_files = {folder.file("validation.txt", prose(20, 2))};
  options.validation_sequences = 10;
  options.schedule = {optim::Shape::kCosine, 5e-3, 5e-4, 4, 40};
  return options;
}

std::vector<RankRun> run_world(int world_size, const train::SessionOptions& options, const RunOptions& run,
                               const Decorate& decorate_reduce) {
  fakes::ThreadWorld world(world_size);
  const Folder scratch;
  RunOptions with_directory = run;
  if (run.checkpoint_directory.empty()) with_directory.checkpoint_directory = scratch.path() + "/checkpoints";
  std::vector<RankRun> runs(static_cast<size_t>(world_size));
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    std::unique_ptr<comm::Communicator> decorated;
    if (decorate_reduce) decorated = decorate_reduce(*channels[1]);
    run_rank(rank, options, with_directory, *channels[0], decorated ? *decorated : *channels[1],
             runs[static_cast<size_t>(rank)]);
    // A rank that fails leaves, as a process would; nobody should wait for it.
    if (!runs[static_cast<size_t>(rank)].error.empty()) world.kill(rank);
  });
  return runs;
}

}  // namespace training
