// What a session does with checkpoints: begins them beside training, and goes on from them.
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/train/host_shards.h"
#include "runtime/trainer/train/progress.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

using base::Code;
using base::Error;

checkpoint::Manifest Session::manifest() const {
  checkpoint::Manifest manifest;
  manifest.step = steps_done_;
  manifest.data_position = data_position_;
  manifest.spread = place().spread;
  manifest.data = {batches_->training_corpus().tokens(), options_.sequence_length, options_.seed,
                   corpus_digest_};
  manifest.model = hf_config(options_.model);
  std::vector<std::vector<model::BlockLayout>> by_tensor_rank;
  for (int rank = 0; rank < groups_.tensor_parallel(); ++rank)
    by_tensor_rank.push_back(trained_blocks(options_.model, rank, groups_.tensor_parallel()));
  manifest.blocks = checkpoint::describe_blocks(by_tensor_rank);
  const std::vector<int> stages =
      plan::stages_of_blocks(options_.model, options_.stage, options_.sequence_length);
  for (size_t block = 0; block < stages.size(); ++block) manifest.blocks[block].stage = stages[block];
  if (frozen_checksum_)
    manifest.adapters = {std::get<plan::LlamaConfig>(options_.model).lora, *frozen_checksum_};
  manifest.gpu = gpu_kernels_;
  manifest.run = options_.run;
  manifest.best = best_;
  if (const model::Fp8State* const fp8 = model_->fp8()) manifest.fp8 = fp8->histories();
  return manifest;
}

checkpoint::Place Session::place() const {
  return {{groups_.tensor_parallel(), groups_.shard_degree(), groups_.replicas(), options_.stage.stages},
          groups_.tensor_rank(),
          groups_.shard_rank(),
          groups_.replica_rank(),
          options_.stage.number};
}

plan::ShardLayout Session::written_layout() const {
  plan::ShardLayout layout = engine_.layout();
  if (repeats_table()) layout.blocks.front().elements = 0;
  return layout;
}

checkpoint::ShardState Session::shard_state() {
  checkpoint::ReadValues read;
  if (backend_.kind() == kernels::DeviceKind::kGpu) {
    read = [this](std::span<const float> values, float* to) -> Result<void> {
      if (optimizer_.is_on_host(values)) {
        std::copy(values.begin(), values.end(), to);
        return {};
      }
      return backend_.read_aside(to, values.data(), static_cast<int64_t>(values.size_bytes()));
    };
  }
  if (optimizer_.packs_moments()) {
    read = [this](std::span<const float> values, float* to) -> Result<void> {
      if (!optimizer_.read_packed(values, to)) std::copy(values.begin(), values.end(), to);
      return {};
    };
  }
  return {engine_.master(), optimizer_.moment1(), optimizer_.moment2(),
          [this](std::span<const float> values) { optimizer_.give_back(values); }, read};
}

Result<void> Session::start_save(const checkpoint::Store& store) {
  RETURN_IF_ERROR(finish_save());
  engine_.settle();
  RETURN_IF_ERROR(backend_.finish());  // the state that the saver reads beside the next steps
  RETURN_IF_ERROR(optimizer_.finish());
  if (options_.compare_every_steps > 0) RETURN_IF_ERROR(compare_replicas());
  const auto started = std::chrono::steady_clock::now();
  const std::span<float> staging(reinterpret_cast<float*>(staging_.data()),
                                 static_cast<size_t>(staging_.bytes()) / sizeof(float));
  saver_.emplace(store, /*publishes=*/groups_.world->rank() == 0, groups_.world->size(), staging);
  saver_->start(manifest(), place(), written_layout(), shard_state());
  saving_step_ = steps_done_;
  stall_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return {};
}

Result<void> Session::finish_save() {
  while (saver_ && saver_->in_flight()) {
    {
      const SavingPhase phase(progress_);
      saver_->wait();
    }
    auto votes = saver_->votes();
    RETURN_IF_ERROR(all_reduce(votes));
    note_end_of_save(saver_->agree(votes));
  }
  return {};
}

void Session::note_end_of_save(std::optional<Result<std::string>> ended) {
  if (!ended) return;
  ended_saves_.push_back({saving_step_, *ended ? **ended : std::string(), stall_seconds_,
                          *ended ? std::nullopt : std::optional<base::Error>(ended->error())});
}

Result<std::optional<std::string>> Session::resume(const checkpoint::Store& store,
                                                   std::vector<std::string>& notices) {
  RETURN_IF_ERROR(read_frozen());
  int64_t tried = std::numeric_limits<int64_t>::max();
  while (true) {
    int64_t candidate = -1;
    auto steps = groups_.world->rank() == 0 ? store.steps() : std::vector<int64_t>();
    if (steps) {
      const auto next =
          std::find_if(steps->begin(), steps->end(), [&](int64_t step) { return step < tried; });
      if (next != steps->end()) candidate = *next;
    }
    RETURN_IF_ERROR(comm::broadcast(*groups_.world, std::as_writable_bytes(std::span(&candidate, 1))));
    RETURN_IF_ERROR(steps);
    if (candidate < 0 && tried == std::numeric_limits<int64_t>::max()) {
      RETURN_IF_ERROR(start());
      return std::optional<std::string>();
    }
    if (candidate < 0) {
      return Error(Code::kCorrupt,
                   fmt::format("no checkpoint in {} can be read; move the folder away to start anew",
                               store.directory()));
    }
    ASSIGN_OR_RETURN(auto resumed, try_resume(store, candidate, notices));
    if (resumed) return std::optional<std::string>(store.path_of(candidate));
    tried = candidate;
  }
}

// False when any rank found the checkpoint damaged: bytes that were read are not those that were written. What could not
// be read says nothing about the checkpoint, so it ends the resume.
Result<bool> Session::try_resume(const checkpoint::Store& store, int64_t step,
                                 std::vector<std::string>& notices) {
  auto manifest_read = store.read_manifest(step);
  Result<void> loaded;
  if (!manifest_read) {
    loaded = manifest_read.error();
  } else {
    loaded = check_fits(*manifest_read, store.path_of(step));
    if (loaded) loaded = read_shard(store, *manifest_read);
  }
  const bool damaged = !loaded && loaded.error().code() == Code::kCorrupt;
  const bool misfit =
      !loaded && (loaded.error().code() == Code::kInvalid || loaded.error().code() == Code::kUnsupported);
  const bool unreadable = !loaded && !damaged && !misfit;
  std::array<double, 3> failures{damaged ? 1.0 : 0.0, misfit ? 1.0 : 0.0, unreadable ? 1.0 : 0.0};
  RETURN_IF_ERROR(all_reduce(failures));
  if (misfit) return std::move(loaded).error();
  if (unreadable) {
    return Error(
        Code::kIo,
        fmt::format("checkpoint {} cannot be read, which does not prove it damaged: {}; mend what "
                    "keeps it from being read, or move its folder away to resume from the one before",
                    store.path_of(step), loaded.error().to_string()));
  }
  if (failures[1] > 0.0) return Error(Code::kPeerLost, "another rank refused the checkpoint");
  if (failures[2] > 0.0) return Error(Code::kPeerLost, "another rank could not read the checkpoint");
  if (damaged) {
    notices.push_back(fmt::format("checkpoint {} is damaged and passed over: {}", store.path_of(step),
                                  loaded.error().to_string()));
  }
  if (failures[0] > 0.0) return false;
  if (reads_parts()) RETURN_IF_ERROR(share_parts());
  if (manifest_read->run.is_other(options_.run) && groups_.world->rank() == 0)
    notices.push_back(fmt::format("goes on from a checkpoint of run {} {}", manifest_read->run.name,
                                  manifest_read->run.id));
  if (model_->fp8() != nullptr) RETURN_IF_ERROR(model_->fp8()->restore(manifest_read->fp8));
  if (backend_.kind() == kernels::DeviceKind::kGpu) gpu_kernels_ = manifest_read->gpu;
  best_ = manifest_read->best;
  steps_done_ = manifest_read->step;
  data_position_ = manifest_read->data_position;
  engine_.publish();
  return true;
}

Result<void> Session::read_shard(const checkpoint::Store& store, const checkpoint::Manifest& saved) {
  checkpoint::LoadTarget target{model_->blocks(), engine_.layout(), groups_.shard_rank()};
  checkpoint::ShardState state = shard_state();
  if (reads_parts()) {
    target.replica_rank = groups_.replica_rank();
    target.replicas = groups_.replicas();
  }
  if (optimizer_.packs_moments()) return read_shard_to_pack(store, saved, target);
  if (optimizer_.moments_on_host()) return read_shard_beside_moments(store, saved, target, state);
  ASSIGN_OR_RETURN(auto host, HostShards::of(backend_, {state.master, state.moment1, state.moment2}));
  state.master = host[0];
  state.moment1 = host[1];
  state.moment2 = host[2];
  RETURN_IF_ERROR(store.read_shard(saved, target, state));
  return host.store();
}

// Moments that pass through other memory, and those of a GPU, are read whole by every replica.
bool Session::reads_parts() const {
  return groups_.replicas() > 1 && backend_.kind() == kernels::DeviceKind::kCpu &&
         !optimizer_.packs_moments() && !optimizer_.moments_on_host();
}

// By all-gathers of equal pieces, which parts may not be: the shorter ones end in what nobody reads.
Result<void> Session::share_parts() {
  constexpr int64_t kAtOnce = 1 << 18;  // elements of all replicas together
  const int64_t replicas = groups_.replicas(), most = std::max<int64_t>(1, kAtOnce / replicas);
  std::vector<float> mine(most), all(most * replicas);
  const checkpoint::ShardState state = shard_state();
  for (const std::span<float> tensor : state.tensors()) {
    for (int block = 0; block < engine_.layout().block_count(); ++block) {
      const std::span<float> shard =
          tensor.subspan(engine_.layout().block(block).shard_offset,
                         engine_.layout().owned(block, groups_.shard_rank()).count());
      const auto count = static_cast<int64_t>(shard.size()), longest = (count + replicas - 1) / replicas;
      for (int64_t first = 0; first < longest; first += most) {
        const int64_t piece = std::min(most, longest - first);
        const auto piece_of = [&](int replica) {
          checkpoint::Place place = this->place();
          place.replica_rank = replica;
          const plan::ElementRange part = place.part_of({0, count});
          const int64_t begin = std::min(part.begin + first, part.end);
          return shard.subspan(begin, std::min(piece, part.end - begin));
        };
        std::ranges::copy(piece_of(groups_.replica_rank()), mine.begin());
        const auto gathered = std::span(all).first(piece * replicas);
        RETURN_IF_ERROR(comm::complete(
            *groups_.replica, groups_.replica->all_gather(std::as_bytes(std::span(mine).first(piece)),
                                                          std::as_writable_bytes(gathered))));
        for (int replica = 0; replica < replicas; ++replica) {
          const std::span<float> to = piece_of(replica);
          std::copy_n(gathered.begin() + replica * piece, to.size(), to.begin());
        }
      }
      if (state.give_back) state.give_back(shard);
    }
  }
  return {};
}

// Moments through the memory of the gradients, one after the other.
Result<void> Session::read_shard_to_pack(const checkpoint::Store& store, const checkpoint::Manifest& saved,
                                         const checkpoint::LoadTarget& target) {
  RETURN_IF_ERROR(store.read_shard(saved, target, {engine_.master(), {}, {}}));
  const std::span<float> values = engine_.gradient();
  for (const int moment : {0, 1}) {
    std::fill(values.begin(), values.end(), 0.0F);
    checkpoint::ShardState state;
    (moment == 0 ? state.moment1 : state.moment2) = values;
    RETURN_IF_ERROR(store.read_shard(saved, target, state));
    optimizer_.write_packed(moment, values);
  }
  return {};
}

// The masters through the memory of a moment, which is read after them.
Result<void> Session::read_shard_beside_moments(const checkpoint::Store& store,
                                                const checkpoint::Manifest& saved,
                                                const checkpoint::LoadTarget& target,
                                                const checkpoint::ShardState& state) {
  RETURN_IF_ERROR(optimizer_.finish());
  ASSIGN_OR_RETURN(auto host, HostShards::of(backend_, {state.master}, state.moment1));
  RETURN_IF_ERROR(store.read_shard(saved, target, {host[0], {}, {}}));
  RETURN_IF_ERROR(host.store());
  return store.read_shard(saved, target, {{}, state.moment1, state.moment2});
}

Result<void> Session::check_fits(const checkpoint::Manifest& saved, const std::string& path) const {
  const checkpoint::Manifest ours = manifest();
  if (const auto same = checkpoint::same_tensors(saved, ours); !same) {
    return Error(Code::kInvalid,
                 fmt::format("checkpoint {}: {}; give this job its own [checkpoint] directory", path,
                             same.error().message()));
  }
  if (saved.adapters != ours.adapters) {
    return Error(
        Code::kInvalid,
        fmt::format("checkpoint {} has adapters of {}; give this job its own [checkpoint] directory, or "
                    "go on as that run was",
                    path,
                    saved.adapters && ours.adapters && saved.adapters->lora == ours.adapters->lora
                        ? "other weights than those in [model] init"
                        : "another [lora], or none"));
  }
  if (!options_.shares_checkpoints && saved.run.is_other(ours.run)) {
    return Error(
        Code::kInvalid,
        fmt::format(
            "checkpoint {} was written by another run, {} {}; move it away, or start from its weights: "
            "[model] init",
            path, saved.run.name, saved.run.id));
  }
  if (checkpoint::same_data(saved.data, ours.data)) return {};
  const auto words = [](const checkpoint::DataIdentity& data) {
    return fmt::format("{} tokens, sequence_length {}, seed {}{}{}", data.corpus_tokens, data.sequence_length,
                       data.seed, data.digest.empty() ? "" : ", digest ", data.digest);
  };
  return Error(Code::kInvalid,
               fmt::format("checkpoint {} was trained on other data ({}; this job: {}); give this job its "
                           "own [checkpoint] directory",
                           path, words(saved.data), words(ours.data)));
}

}  // namespace shardrun::train
