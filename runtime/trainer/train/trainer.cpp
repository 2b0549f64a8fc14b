#include "runtime/trainer/train/trainer.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/limits.h"
#include "runtime/base/trust.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/computing_thread.h"
#include "runtime/contract/epoch.h"
#include "runtime/contract/exit_code.h"
#include "runtime/plan/communication.h"
#include "runtime/plan/mesh.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"
#include "runtime/trainer/comm/checked_communicator.h"
#include "runtime/trainer/comm/world.h"
#include "runtime/trainer/kernels/gpu.h"
#include "runtime/trainer/train/attention_choice.h"
#include "runtime/trainer/train/loop.h"
#include "runtime/trainer/train/metrics.h"
#include "runtime/trainer/train/products.h"
#include "runtime/trainer/train/progress.h"
#include "runtime/trainer/train/sample_text.h"
#include "runtime/trainer/train/session.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/train/spec_options.h"
#include "runtime/trainer/train/stop_signal.h"
#include "runtime/trainer/train/trace.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

// What an error ends the rank with.
int rank_exit_code(Code code) {
  switch (code) {
    case Code::kInvalid:
    case Code::kNotFound:
    case Code::kUnsupported:
      return contract::kExitBadInput;
    case Code::kPeerLost:
    case Code::kTimeout:
      return contract::kExitInfrastructure;
    case Code::kCancelled:
      return contract::kExitPreempted;
    case Code::kRefused:
    case Code::kIo:
    case Code::kCorrupt:
      return contract::kExitProgramFailed;
  }
  return contract::kExitProgramFailed;
}

// Returns the resident bytes of this process now.
int64_t resident_bytes() {
  int64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re"); file != nullptr) {
    if (std::fscanf(file, "%*d %" SCNd64, &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * ::sysconf(_SC_PAGESIZE);
}

// What every rank does between two steps: notes its progress, and says that it could not write its part of a checkpoint.
// The trace of [logging] profile_steps begins at the third step: the first two touch memory and make primitives.
class Witness : public LoopObserver {
 public:
  Witness(int global_rank, Progress& progress) : global_rank_(global_rank), progress_(progress) {}

  // `write` is called once, when the steps are over.
  void profile(Trace& trace, int64_t steps, std::function<void()> write) {
    trace_ = &trace;
    profile_steps_ = steps;
    write_trace_ = std::move(write);
  }

  void on_step(const StepReport& report, double seconds) override {
    constexpr int64_t kWarmSteps = 2;
    progress_.end_step(report.step, seconds);
    progress_.enter_phase(contract::RankPhase::kStepping);
    ++steps_seen_;
    if (profile_steps_ == 0) return;
    trace_->turn(steps_seen_ >= kWarmSteps && steps_seen_ < kWarmSteps + profile_steps_);
    if (steps_seen_ == kWarmSteps + profile_steps_) write_trace_();
  }

  void on_lost_checkpoint(int64_t step, const Error& error) override {
    if (global_rank_ != 0 && error.code() == Code::kPeerLost) return;
    fmt::print(stderr, "shardrun: rank {}: no checkpoint of step {}: {}\n", global_rank_, step,
               error.to_string());
  }

 private:
  int global_rank_;
  Progress& progress_;
  Trace* trace_ = nullptr;
  int64_t profile_steps_ = 0, steps_seen_ = 0;
  std::function<void()> write_trace_;
};

std::string why_ended(const checkpoint::BestLoss& best) {
  return fmt::format(
      "ends early: the validation loss of {} evaluation{} was no better than {:.4f} at step {}",
      best.evaluations_since, best.evaluations_since == 1 ? "" : "s", best.loss, best.step);
}

// Rank 0's account of the run: progress lines, metrics.jsonl and, at the end, summary.json.
class Reporter : public Witness {
 public:
  Reporter(MetricsLog metrics, const spec::JobSpec& spec, Progress& progress)
      : Witness(/*global_rank=*/0, progress),
        metrics_(std::move(metrics)),
        sets_(spec.evaluation.sets),
        steps_(spec.optimizer.steps),
        every_steps_(spec.logging.every_steps) {}

  MetricsLog& metrics() { return metrics_; }
  void start(const Session& session) {
    tokens_per_step_ = session.tokens_per_step();
    unigram_entropy_ = session.unigram_entropy();
  }

  void on_step(const StepReport& report, double seconds) override {
    Witness::on_step(report, seconds);
    metrics_.step(report, seconds, tokens_per_step_, resident_bytes());
    window_seconds_ += seconds;
    total_seconds_ += seconds;
    ++window_steps_;
    ++total_steps_;
    if (!report.has_targets && !std::exchange(said_no_targets_, true))
      print(fmt::format(
          "step {}/{}  warning: none of its tokens is learned, for prompts fill its sequences: a loss "
          "of 0 says nothing; raise [data] sequence_length, or give other files",
          report.step, steps_));
    const bool due = every_steps_ > 0 && report.step % every_steps_ == 0;
    if (!due && report.step != steps_ && total_steps_ != 1) return;
    const double mean_seconds = total_seconds_ / static_cast<double>(total_steps_);
    print(to_string({report.step, steps_, report.loss, report.learning_rate, report.gradient_norm,
                     static_cast<double>(tokens_per_step_ * window_steps_) / window_seconds_,
                     mean_seconds * static_cast<double>(steps_ - report.step)}));
    window_seconds_ = 0.0;
    window_steps_ = 0;
  }

  void on_validation(int64_t step, double loss) override {
    metrics_.validation(step, loss, unigram_entropy_);
    print(fmt::format("step {}/{}  validation loss {:.4f} nats  unigram entropy of its text {:.4f}", step,
                      steps_, loss, unigram_entropy_));
  }

  void on_evaluation(int64_t step, size_t set, double loss) override {
    metrics_.evaluation(step, sets_[set].name, loss);
    print(fmt::format("step {}/{}  {}: loss {:.4f} nats  perplexity {:.2f}", step, steps_, sets_[set].name,
                      loss, std::exp(loss)));
  }

  void on_best(const checkpoint::BestLoss& best) override {
    print(fmt::format("step {}/{}  the lowest validation loss so far", best.step, steps_));
  }

  void on_early_end(int64_t step, const checkpoint::BestLoss& best) override {
    print(fmt::format("step {}/{}  {}", step, steps_, why_ended(best)));
  }

  void on_checkpoint(int64_t step, const std::string& path, double stall_seconds) override {
    metrics_.checkpoint(step, path, stall_seconds);
    print(fmt::format("step {}/{}  checkpoint {}", step, steps_, path));
  }

  static void print(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

 private:
  MetricsLog metrics_;
  std::vector<spec::EvaluationSet> sets_;
  int64_t steps_, every_steps_;
  int64_t tokens_per_step_ = 0;
  double unigram_entropy_ = 0.0;
  double window_seconds_ = 0.0, total_seconds_ = 0.0;
  int64_t window_steps_ = 0, total_steps_ = 0;
  bool said_no_targets_ = false;
};

record::TrainingMetrics summarize(const Session& session, const LoopOutcome& outcome,
                                  const spec::JobSpec& spec) {
  record::TrainingMetrics summary;
  if (!outcome.evaluation_losses.empty()) summary.evaluation_losses.emplace();
  for (size_t set = 0; set < outcome.evaluation_losses.size(); ++set)
    summary.evaluation_losses->emplace(spec.evaluation.sets[set].name, outcome.evaluation_losses[set]);
  if (outcome.best) summary.best = {outcome.best->step, outcome.best->loss, ""};
  if (outcome.ended_early)
    summary.ended_early =
        fmt::format("step {} of {} {}", session.steps_done(), spec.optimizer.steps, why_ended(*outcome.best));
  summary.steps = session.steps_done();
  summary.first_loss = outcome.first_loss;
  summary.final_loss = outcome.final_loss;
  summary.validation_loss = outcome.validation_loss;
  summary.unigram_entropy = session.unigram_entropy();
  const double seconds = std::accumulate(outcome.step_seconds.begin(), outcome.step_seconds.end(), 0.0);
  if (seconds > 0.0) {
    const auto tokens = static_cast<double>(session.tokens_per_step());
    summary.tokens_per_second = tokens * static_cast<double>(outcome.step_seconds.size()) / seconds;
    summary.steps_seconds = seconds;
    summary.median_tokens_per_second = tokens / percentile(outcome.step_seconds, 0.50);
    summary.peak_tokens_per_second = tokens / *std::ranges::min_element(outcome.step_seconds);
  }
  summary.step_seconds_p50 = percentile(outcome.step_seconds, 0.50);
  summary.step_seconds_p99 = percentile(outcome.step_seconds, 0.99);
  summary.checkpoint = outcome.checkpoint;
  summary.planned = session.plan().memory;
  summary.flops_per_token = session.plan().flops_per_token;
  return summary;
}

// A world of connections, files of data and a checkpoint at once: the limit that shells set is for interactive programs.
constexpr int64_t kEnoughDescriptors = 65536;

// A rank's whole life, in order. Members are destroyed bottom-up: the communicators go before the session,
// whose arena an operation in flight may still name, and the GPU after both.
class Trainer {
  using Lane = Trace::Lane;

 public:
  Trainer(const contract::RankEnv& env, const spec::JobSpec& spec, const record::LaunchPlan& plan,
          contract::ProgressPage& progress)
      : env_(env), spec_(spec), plan_(plan), run_dir_{env.run_directory}, progress_(progress) {}

  Result<int> run() {
    base::make_room_for_descriptors(kEnoughDescriptors);
    ::omp_set_num_threads(std::max(1, plan_.cpus_per_rank));
    RETURN_IF_ERROR(open_gpu());
    RETURN_IF_ERROR(connect());
    install_stop_signals();
    SessionOptions options = session_options(spec_, plan_);
    options.node_name = env_.node_name;
    options.stage = stage_;
    if (!gpu_) prepare_products(options, spec_.sharding.tensor_parallel);
    process_bytes_ = resident_bytes();
    ASSIGN_OR_RETURN(auto session, Session::create(options, groups(), backend()));
    session_ = std::move(session);
    session_->set_progress(&progress_);
    if (reporter_) reporter_->start(*session_);
    if (reporter_ && !gpu_) Reporter::print("instructions: " + kernels::cpu_instructions());
    const std::string directory = contract::checkpoint_directory(spec_, plan_);
    const checkpoint::Store store(directory, spec_.checkpoint.keep,
                                  contract::checkpoint_stage(directory, plan_.id, env_.attempt),
                                  env_.attempt);
    RETURN_IF_ERROR(resume(store));
    if (reporter_ && spec_.logging.tensorboard) show_sample();
    if (gpu_) {
      RETURN_IF_ERROR(settle_attention());
      RETURN_IF_ERROR(settle_matrix_products());
      backend().use_graphs(spec_.gpu.graphs);
    }

    Witness witness(env_.global_rank, progress_);
    Witness& observer = reporter_ ? *reporter_ : witness;
    if (spec_.logging.profile_steps > 0) {
      session_->set_trace(&trace_);
      observer.profile(trace_, spec_.logging.profile_steps, [this] { write_trace(); });
    }
    ASSIGN_OR_RETURN(auto outcome, run_loop(*session_, store,
                                            {spec_.optimizer.steps, spec_.checkpoint.every_steps,
                                             spec_.logging.validate_every_steps, spec_.checkpoint.at_end,
                                             spec_.evaluation.keep_best, spec_.evaluation.stop_after},
                                            stop_requested, observer));
    progress_.enter_phase(contract::RankPhase::kEnding);
    if (outcome.checkpoint.empty()) outcome.checkpoint = resumed_from_;
    if (reporter_) RETURN_IF_ERROR(write_summary(outcome, store));
    return outcome.stopped ? contract::kExitPreempted : contract::kExitDone;
  }

 private:
  // Before anything else: a node without its GPU should cost nobody's time.
  Result<void> open_gpu() {
    if (spec_.resources.device != spec::DeviceKind::kGpu) return {};
    ASSIGN_OR_RETURN(
        auto gpu, kernels::Gpu::open(plan_.gpu_library(),
                                     {.local_rank = env_.local_rank,
                                      .gpus_per_node = spec_.resources.gpus_per_node,
                                      .ranks_per_gpu = spec_.resources.ranks_per_gpu,
                                      .workspace_bytes = plan::gpu_workspace_bytes(
                                          session_options(spec_, plan_), spec_.sharding.tensor_parallel)}));
    gpu_.emplace(std::move(gpu));
    if (!spec_.precision.fp8) return {};
    RETURN_IF_ERROR(gpu_->backend().fp8_ops());
    return {};
  }

  kernels::Backend& backend() const { return gpu_ ? gpu_->backend() : kernels::cpu_backend(); }

  Result<void> connect() {
    comm::WorldOptions options;
    options.plugin_path = plan_.comm_plugin(spec_.communication.plugin);
    options.provider = spec_.communication.provider;
    options.timeout = spec_.communication.timeout;
    ASSIGN_OR_RETURN(auto mesh, plan::solve_mesh(spec_, env_.world_size, plan_.ranks_per_node));
    const int rank = env_.global_rank;
    options.groups.clear();
    const auto want = [&](Lane lane, const std::vector<uint32_t>& ranks, size_t times = 1) {
      lanes_.insert(lanes_.end(), times, lane);
      options.groups.insert(options.groups.end(), times, ranks);
    };
    want(Lane::kWorld, {});
    want(Lane::kGather, mesh.shard_group(rank));
    want(Lane::kReduce, mesh.shard_group(rank));
    want(Lane::kReplica, mesh.replica_group(rank));
    want(Lane::kTensor, mesh.tensor_group(rank));
    if (spec_.sharding.expert_parallel > 1) want(Lane::kExperts, mesh.shard_group(rank));
    if (mesh.context_parallel > 1) want(Lane::kContext, mesh.context_group(rank));
    if (mesh.pipeline_parallel > 1) {
      for (const bool odd : {false, true})
        want(Lane::kStages, mesh.link_group(rank, odd), 2);  // there and back
      if (spec_.sharding.virtual_stages > 1) want(Lane::kStages, mesh.end_group(rank), 2);
      if (spec_.model.tied_embeddings) want(Lane::kStages, mesh.end_group(rank));
    }
    stage_ = {mesh.stage(rank), mesh.pipeline_parallel, spec_.sharding.virtual_stages};
    options.device = device_use(options.groups.size());
    ASSIGN_OR_RETURN(auto world, comm::connect_world(options));
    world_ = std::move(world);
    if (plan_.batch.data_parallel != mesh.readers()) {
      return Error(
          Code::kInvalid,
          fmt::format("{} was solved for {} data-parallel ranks, but {} were started; "
                      "start as many",
                      run_dir_.attempt_plan(env_.attempt), plan_.batch.data_parallel, mesh.readers()));
    }
    if (env_.global_rank != 0) return {};
    if (env_.launch_time > 0.0) first_barrier_seconds_ = base::unix_now() - env_.launch_time;
    RETURN_IF_ERROR(base::make_private_directory(run_dir_.attempt(env_.attempt)));
    ASSIGN_OR_RETURN(auto metrics, MetricsLog::open(run_dir_, env_.attempt));
    if (spec_.logging.tensorboard) RETURN_IF_ERROR(metrics.add_tensorboard());
    reporter_.emplace(std::move(metrics), spec_, progress_);
    reporter_->metrics().first_barrier(first_barrier_seconds_);
    return {};
  }

  // The world's buffers are the host's, every other group's the GPU's.
  std::optional<comm::DeviceUse> device_use(size_t groups) const {
    if (!gpu_) return std::nullopt;
    std::vector<int64_t> largest(groups, plan::kLargestStagedPart);
    largest.front() = -1;
    kernels::Backend& gpu = backend();
    return comm::DeviceUse{gpu.index(), gpu.stream(), std::move(largest), [&gpu] { return gpu.make_link(); }};
  }

  // Those that connect() asked for; each with its lane when the job is profiled.
  Groups groups() {
    std::vector<comm::Communicator*> all;
    for (size_t i = 0; i < world_.communicators.size(); ++i) {
      comm::Communicator* inner = world_.communicators[i].get();
      if (spec_.communication.checksums) {
        checked_.push_back(comm::checked(*inner, Trace::name_of(lanes_[i])));
        inner = checked_.back().get();
      }
      watched_.push_back(watched(*inner, progress_));
      comm::Communicator* group = watched_.back().get();
      if (spec_.logging.profile_steps > 0) {
        kernels::Backend& owner = i == 0 ? kernels::cpu_backend() : backend();
        traced_.push_back(traced(*group, trace_, lanes_[i], owner));
        group = traced_.back().get();
      }
      all.push_back(group);
    }
    const auto first = [&](Lane lane) {
      return std::find(lanes_.begin(), lanes_.end(), lane) - lanes_.begin();
    };
    const auto of = [&](Lane lane) {
      const auto at = static_cast<size_t>(first(lane));
      return at < all.size() ? all[at] : nullptr;
    };
    const auto beyond_us = [](comm::Communicator* group) { return group->size() > 1 ? group : nullptr; };
    Groups groups{.world = of(Lane::kWorld),
                  .gather = of(Lane::kGather),
                  .reduce = of(Lane::kReduce),
                  .replica = beyond_us(of(Lane::kReplica)),
                  .tensor = beyond_us(of(Lane::kTensor)),
                  .experts = of(Lane::kExperts),
                  .context = of(Lane::kContext)};
    if (stage_.stages == 1) return groups;
    const auto links = std::span(all).subspan(static_cast<size_t>(first(Lane::kStages)));
    const size_t count = stage_.chunks > 1 ? 6 : 4;
    groups.stages = StageGroups::of(stage_, links.first(count));
    if (count < links.size()) groups.stages.ends = beyond_us(links[count]);
    return groups;
  }

  Result<void> settle_attention() {
    const Session::Attention attention = session_->attention();
    auto choice = choose_attention(
        *world_.communicators.front(),
        {spec_.gpu.attention, session_->gpu_kernels().attention, attention.refusal}, [&] {
          return backend().use_cudnn_attention(attention.shape, attention.causal, attention.most_cudnn_bytes);
        });
    RETURN_IF_ERROR(choice);
    if (!choice->by_cudnn) backend().use_own_attention();
    auto kernels = session_->gpu_kernels();
    kernels.attention = choice->kept;
    session_->keep(std::move(kernels));
    attention_ = std::move(choice->text);
    if (!reporter_) return {};
    Reporter::print("attention: " + attention_);
    if (!choice->notice.empty()) fmt::print(stderr, "shardrun: {}\n", choice->notice);
    return {};
  }

  // The cache's; empty where it is nowhere, or anybody's to write.
  std::string table_folder() const {
    const auto folder = contract::compile_cache_folder(spec_, plan_.working_directory);
    Result<void> ours = folder ? base::make_directories(*folder, 0700) : Result<void>(folder.error());
    if (ours) ours = base::refuse_if_others_write(*folder);
    if (ours) return *folder;
    fmt::print(stderr, "shardrun: no table of matrix products is read or kept: {}\n",
               ours.error().to_string());
    return "";
  }

  Result<void> settle_matrix_products() {
    ProductsOptions options;
    options.tunes = spec_.gpu.tune_products;
    if (options.tunes && reporter_) options.cache = table_folder();
    ASSIGN_OR_RETURN(auto settled,
                     settle_products(*session_, backend(), *world_.communicators.front(), options));
    for (const std::string& notice : settled.notices) fmt::print(stderr, "shardrun: {}\n", notice);
    products_ = std::move(settled.summary);
    if (reporter_) Reporter::print("matrix products: " + products_);
    return {};
  }

  // Costs nobody's run: without a tokenizer there is nothing to see.
  void show_sample() {
    const auto tokenizer = find_tokenizer(session_->tokenizer(), spec_.model.init);
    const auto batch = session_->next_batch();
    if (!tokenizer || !batch) return;
    const int64_t length = spec_.data.sequence_length / spec_.sharding.context_parallel;
    reporter_->metrics().sample(session_->steps_done(), sample_text(*tokenizer, *batch, length));
  }

  void write_trace() {
    auto written = trace_.collect(backend());
    if (written) written = base::make_private_directory(run_dir_.profile());
    if (written) {
      written = trace_.write(
          fmt::format("{}/attempt_{}_rank_{}.json", run_dir_.profile(), env_.attempt, env_.global_rank),
          env_.global_rank, env_.node_name);
    }
    if (!written) fmt::print(stderr, "shardrun: no trace was written: {}\n", written.error().to_string());
  }

  Result<void> resume(const checkpoint::Store& store) {
    std::vector<std::string> notices;
    auto resumed = session_->resume(store, notices);
    for (const std::string& notice : notices)
      fmt::print(stderr, "shardrun: rank {}: {}\n", env_.global_rank, notice);
    RETURN_IF_ERROR(resumed);
    if (*resumed) resumed_from_ = **resumed;
    if (*resumed && reporter_) {
      Reporter::print(fmt::format("resumed from {} at step {}", resumed_from_, session_->steps_done()));
    }
    return {};
  }

  Result<void> write_summary(const LoopOutcome& outcome, const checkpoint::Store& store) {
    record::TrainingMetrics summary = summarize(*session_, outcome, spec_);
    if (summary.best && spec_.evaluation.keep_best && store.best() == summary.best->step)
      summary.best->checkpoint = store.path_of(summary.best->step);
    summary.first_barrier_seconds = first_barrier_seconds_;
    summary.planned.process = process_bytes_;
    summary.versions["shardrun"] = SHARDRUN_VERSION;
    summary.versions["device"] = backend().name();
    summary.versions["instructions"] = kernels::cpu_instructions();
    if (gpu_) {
      summary.versions["attention"] = attention_;
      summary.versions["matrix products"] = products_;
    }
    summary.versions["comm plugin"] = world_.plugin_build_id;
    summary.versions["comm provider"] = world_.provider;
    if (const int64_t lost = reporter_->metrics().lines_lost(); lost > 0) {
      fmt::print(stderr, "shardrun: {} lines of {} could not be written\n", lost, run_dir_.metrics_jsonl());
    }
    return base::write_file_atomically(run_dir_.summary_json(env_.attempt), to_json(summary),
                                       record::kFileMode);
  }

  const contract::RankEnv& env_;
  const spec::JobSpec& spec_;
  const record::LaunchPlan& plan_;
  record::RunDir run_dir_;
  double first_barrier_seconds_ = 0.0;
  int64_t process_bytes_ = 0;
  std::string resumed_from_;
  std::string attention_, products_;  // of a GPU: whose and why, and where their table is from
  std::optional<Reporter> reporter_;
  Trace trace_;
  std::optional<kernels::Gpu> gpu_;
  std::unique_ptr<Session> session_;
  Progress progress_;
  plan::Stage stage_;
  comm::World world_;
  std::vector<Lane> lanes_;  // of its communicators
  std::vector<std::unique_ptr<comm::Communicator>> checked_;
  std::vector<std::unique_ptr<comm::Communicator>> watched_;
  std::vector<std::unique_ptr<comm::Communicator>> traced_;
};

}  // namespace

int run_trainer(const contract::RankEnv& env, const spec::JobSpec& spec, const record::LaunchPlan& plan,
                contract::ProgressPage& progress) {
  contract::ask_for_long_slices();
  Trainer trainer(env, spec, plan, progress);
  const auto exit_code = trainer.run();
  if (exit_code) return *exit_code;
  fmt::print(stderr, "shardrun: rank {} on {}: {}\n", env.global_rank, env.node_name,
             exit_code.error().to_string());
  return rank_exit_code(exit_code.error().code());
}

}  // namespace shardrun::train
