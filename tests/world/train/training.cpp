#include "tests/world/train/training.h"

#include <doctest/doctest.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>

#include "runtime/plan/mesh.h"
#include "runtime/trainer/train/progress.h"
#include "tests/fakes/thread_world.h"
#include "tests/support/prose.h"

namespace training {
namespace {

class Recorder : public train::LoopObserver {
 public:
  explicit Recorder(RankRun& run) : run_(run) {}
  void on_step(const train::StepReport& report, double) override {
    run_.losses.push_back(report.loss);
    if (!report.has_targets) run_.steps_without_targets.push_back(report.step);
  }
  void on_validation(int64_t, double loss) override { run_.validation_losses.push_back(loss); }
  void on_checkpoint(int64_t step, const std::string&, double) override { run_.saved_steps.push_back(step); }
  void on_lost_checkpoint(int64_t step, const base::Error& error) override {
    run_.lost_saves.push_back(std::to_string(step) + ": " + error.to_string());
  }

 private:
  RankRun& run_;
};

void fail(RankRun& run, const base::Error& error) {
  run.error = error.to_string();
  run.error_code = error.code();
}

// The thread worlds of every group of a mesh.
class Groups {
 public:
  explicit Groups(const plan::Mesh& mesh) : mesh_(mesh) {
    for (int rank = 0; rank < mesh.world_size; ++rank) {
      for (const auto& group : {mesh.tensor_group(rank), mesh.shard_group(rank), mesh.replica_group(rank),
                                mesh.context_group(rank), mesh.link_group(rank, false),
                                mesh.link_group(rank, true), mesh.end_group(rank)}) {
        auto& world = worlds_[group];
        if (!world) world = std::make_unique<fakes::ThreadWorld>(static_cast<int>(group.size()), kChannels);
      }
    }
  }

  struct OfRank {
    std::unique_ptr<comm::Communicator> gather, reduce, replica, tensor, experts, context;
    std::vector<std::unique_ptr<comm::Communicator>> links;
    std::unique_ptr<comm::Communicator> ends;
  };
  OfRank of(int rank) {
    // Groups of different kinds may be the same ranks: each kind has its own channel.
    OfRank own{at(mesh_.shard_group(rank), rank, 0),
               at(mesh_.shard_group(rank), rank, 1),
               at(mesh_.replica_group(rank), rank, 2),
               at(mesh_.tensor_group(rank), rank, 3),
               at(mesh_.shard_group(rank), rank, 4),
               at(mesh_.context_group(rank), rank, 5),
               {},
               at(mesh_.end_group(rank), rank, 10)};
    for (const int channel : {6, 7, 8, 9})
      own.links.push_back(at(mesh_.link_group(rank, /*odd=*/channel > 7), rank, channel));
    for (const int channel : {11, 12}) own.links.push_back(at(mesh_.end_group(rank), rank, channel));
    return own;
  }
  void kill(int rank) {
    for (auto& [group, world] : worlds_) {
      const auto place = std::find(group.begin(), group.end(), static_cast<uint32_t>(rank));
      if (place != group.end()) world->kill(static_cast<int>(place - group.begin()));
    }
  }

 private:
  static constexpr fakes::ThreadWorldOptions kChannels{.channels = 13};

  std::unique_ptr<comm::Communicator> at(const std::vector<uint32_t>& group, int rank, int channel) {
    const auto place = std::find(group.begin(), group.end(), static_cast<uint32_t>(rank));
    return worlds_.at(group)->communicator(static_cast<int>(place - group.begin()), channel);
  }

  plan::Mesh mesh_;
  std::map<std::vector<uint32_t>, std::unique_ptr<fakes::ThreadWorld>> worlds_;
};

// A rank that fails leaves, as a process would; nobody should wait for it, or reach for what its session held.
struct LeavesWhenFailed {
  const RankRun& run;
  const std::function<void()>& leave;
  ~LeavesWhenFailed() {
    if (!run.error.empty()) leave();
  }
};

void run_rank(const train::SessionOptions& options, const RunOptions& run_options,
              const train::Groups& groups, RankRun& run, const std::function<void()>& leave) {
  ::omp_set_num_threads(1);
  auto session = train::Session::create(options, groups);
  const LeavesWhenFailed leaves{run, leave};  // ends before the session
  if (!session) return fail(run, session.error());
  train::Session& ours = **session;
  contract::ProgressPage nobodys;
  const bool is_watched = run_options.page != nullptr && groups.world->rank() == 0;
  train::Progress progress(is_watched ? *run_options.page : nobodys);
  ours.set_progress(&progress);
  const checkpoint::Store store(run_options.checkpoint_directory, run_options.keep);
  if (!run_options.checkpoint_directory.empty()) {
    auto resumed = ours.resume(store, run.notices);
    if (!resumed) return fail(run, resumed.error());
    run.resumed_from = *resumed;
  } else if (auto started = ours.start(); !started) {
    return fail(run, started.error());
  }
  const auto stop = [&] {
    return groups.world->rank() == groups.world->size() - 1 &&
           ours.steps_done() + 1 == run_options.stop_at_step;
  };
  Recorder recorder(run);
  auto outcome = train::run_loop(ours, store, run_options.loop, stop, recorder);
  if (!outcome) return fail(run, outcome.error());
  run.validation_loss = outcome->validation_loss;
  run.evaluation_losses = outcome->evaluation_losses;
  run.stopped = outcome->stopped;
  run.best = outcome->best;
  run.ended_early = outcome->ended_early;
  run.checkpoint = outcome->checkpoint;
}

}  // namespace

RunOptions steps(int64_t count) {
  RunOptions run;
  run.loop.steps = count;
  return run;
}

void check_follows(const std::vector<RankRun>& runs, const std::vector<RankRun>& alone) {
  require_success(runs);
  const double loss = alone[0].losses.back();
  CHECK(largest_difference(runs[0].losses, alone[0].losses) <= 1e-5 * loss);
  REQUIRE(runs[0].validation_loss);
  CHECK(std::abs(*runs[0].validation_loss - *alone[0].validation_loss) <= 1e-5 * loss);
  for (const RankRun& run : runs) {
    CHECK(run.losses == runs[0].losses);
    CHECK(run.validation_loss == runs[0].validation_loss);
  }
}

void require_success(const std::vector<RankRun>& runs) {
  for (const RankRun& run : runs) REQUIRE_MESSAGE(run.error.empty(), run.error);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

train::SessionOptions tiny_options(const Folder& folder, int world_size, int64_t micro_batch) {
  train::SessionOptions options;
  options.model =
      model::LlamaConfig{.layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .ffn = 48, .vocab = 256};
  options.sequence_length = 16;
  options.micro_batch = micro_batch;
  options.gradient_accumulation = 12 / micro_batch / world_size;
  options.seed = 5;
  options.training_files = {folder.file("training.txt", tests::prose(60, 1))};
  options.validation_files = {folder.file("validation.txt", tests::prose(20, 2))};
  options.validation_sequences = 10;
  options.schedule = {optim::Schedule::kCosine, 5e-3, 5e-4, 4, 40};
  return options;
}

std::vector<RankRun> run_world(int world_size, const train::SessionOptions& options, const RunOptions& run,
                               const Decorate& decorate) {
  plan::Mesh mesh{world_size, run.tensor_parallel, run.shard_degree, run.context_parallel,
                  run.pipeline_parallel};
  if (mesh.shard_degree == 0) mesh.shard_degree = mesh.data_parallel();
  fakes::ThreadWorld world(world_size);
  Groups groups(mesh);
  const Folder scratch;
  RunOptions with_directory = run;
  if (run.checkpoint_directory.empty()) with_directory.checkpoint_directory = scratch.path() + "/checkpoints";
  std::vector<RankRun> runs(static_cast<size_t>(world_size));
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    Groups::OfRank own = groups.of(rank);
    std::vector<std::unique_ptr<comm::Communicator>> decorated;
    const auto dressed = [&](Group kind, comm::Communicator& inner) {
      if (decorate) decorated.push_back(decorate(kind, inner));
      return !decorated.empty() && decorated.back() ? decorated.back().get() : &inner;
    };
    const bool shares = plan::shape_of(options.model).expert_parallel > 1;
    train::SessionOptions of_rank = options;
    of_rank.context_parallel = run.context_parallel;
    of_rank.stage = {mesh.stage(rank), mesh.pipeline_parallel, run.virtual_stages};
    train::Groups all{channels[0],
                      own.gather.get(),
                      dressed(Group::kReduce, *own.reduce),
                      dressed(Group::kReplica, *own.replica),
                      dressed(Group::kTensor, *own.tensor),
                      shares ? dressed(Group::kExperts, *own.experts) : nullptr,
                      run.context_parallel > 1 ? dressed(Group::kContext, *own.context) : nullptr};
    if (of_rank.stage.stages > 1) {
      std::vector<comm::Communicator*> links;
      if (of_rank.stage.chunks == 1) own.links.resize(4);  // no way from the last stage to the first
      for (const auto& link : own.links) links.push_back(dressed(Group::kStages, *link));
      all.stages = train::StageGroups::of(of_rank.stage, links);
      if (plan::shape_of(options.model).tied && own.ends->size() > 1) all.stages.ends = own.ends.get();
    }
    run_rank(of_rank, with_directory, all, runs[static_cast<size_t>(rank)], [&] {
      world.kill(rank);
      groups.kill(rank);
    });
  });
  return runs;
}

Decorate one_lost_link() {
  class Lost : public ForwardingCommunicator {
   public:
    explicit Lost(comm::Communicator& inner) : ForwardingCommunicator(inner) {}
    base::Result<comm::Pending> all_to_all(const Parts& parts) override {
      if (++operations_ == 7) return base::Error(base::Code::kPeerLost, "planted");
      return inner_.all_to_all(parts);
    }

   private:
    int operations_ = 0;
  };
  const auto planted = std::make_shared<std::atomic<bool>>(false);
  return [planted](Group group, comm::Communicator& inner) {
    const bool this_one = group == Group::kStages && inner.size() == 2 && !planted->exchange(true);
    return std::unique_ptr<comm::Communicator>(this_one ? std::make_unique<Lost>(inner) : nullptr);
  };
}

}  // namespace training
