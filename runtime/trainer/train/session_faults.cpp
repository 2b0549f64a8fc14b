// What a session finds out about numbers that are wrong, and whom it names.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/trainer/train/replica_check.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

using base::Code;
using base::Error;

namespace {

// What a rank says, and on which node it runs.
template <typename Word>
struct Said {
  Word word;
  std::array<char, 64> node{};

  // Returns "rank 3 on node n1".
  std::string rank_text(int rank) const {
    return fmt::format("rank {}{}{}", rank, node[0] != 0 ? " on node " : "", node.data());
  }
};

// Returns what all ranks say, in their order: collective.
template <typename Word>
Result<std::vector<Said<Word>>> hear_all(comm::Communicator& world, const Word& word,
                                         const std::string& node) {
  Said<Word> own{word};
  node.copy(own.node.data(), own.node.size() - 1);
  return comm::gather_values(world, std::vector{own});
}

}  // namespace

Result<double> Session::sum_of_squares(std::span<const float> values) {
  Sums& sums = *reinterpret_cast<Sums*>(sums_.data());
  Sums own{};
  backend_.optimizer().sum_of_squares(&sums.part, values);
  RETURN_IF_ERROR(backend_.download(&own, &sums, sizeof own));
  return own.part;
}

// Brings together what every rank sees: collective. The loss is a rank's own, so it names where a bad number came from; a
// gradient has been summed already, and only names the block.
base::Error Session::not_finite(const StepReport& report, double own_loss) {
  struct Seen {
    bool loss_is_finite = true, weights_are_finite = true;
    int block = INT32_MAX;  // the first in whose gradient there is a bad number
  };
  Seen own;
  own.loss_is_finite = std::isfinite(own_loss);
  ASSIGN_OR_RETURN(const double weights, sum_of_squares(engine_.master()));
  own.weights_are_finite = std::isfinite(weights);
  for (int block = 0; block < engine_.layout().block_count() && own.block == INT32_MAX; ++block) {
    const auto& part = engine_.layout().block(block);
    ASSIGN_OR_RETURN(const double squares,
                     sum_of_squares(engine_.gradient().subspan(part.shard_offset, part.shard_elements)));
    if (!std::isfinite(squares)) own.block = block;
  }
  ASSIGN_OR_RETURN(const auto all, hear_all(*groups_.world, own, options_.node_name));

  int rank = 0, block = INT32_MAX;  // the first rank whose loss is bad, or else the first with a bad gradient
  has_good_state_ = true;
  for (int i = groups_.world->size() - 1; i >= 0; --i) {
    const Seen& seen = all[i].word;
    has_good_state_ = has_good_state_ && seen.weights_are_finite;
    block = std::min(block, seen.block);
    const bool loss = !seen.loss_is_finite, other_loss = !all[rank].word.loss_is_finite;
    if (loss || (!other_loss && seen.block != INT32_MAX)) rank = i;
  }
  const std::string sequences = sequences_of(rank);
  std::string words = fmt::format(
      "step {}: loss {} and gradient norm {} are not finite; lower [optimizer] learning_rate or lengthen "
      "warmup_steps; first seen on {}",
      report.step, report.loss, report.gradient_norm, all[rank].rank_text(rank));
  if (!all[rank].word.loss_is_finite) words += fmt::format(", in the loss of sequences {}", sequences);
  if (block != INT32_MAX) words += fmt::format(", in the gradient of {}", model_->blocks()[block].name);
  if (!has_good_state_) words += "; the weights were not finite before it either";
  return Error(Code::kRefused, std::move(words));
}

// Returns the sequences of a rank in the next step: "8-9, 24".
std::string Session::sequences_of(int rank) const {
  const int in_stage = rank % (groups_.data_parallel() * groups_.tensor_parallel());
  const int reader = in_stage / (groups_.tensor_parallel() * groups_.context_parallel());
  std::string sequences;
  for (int64_t number = 0; number < batch_.gradient_accumulation; ++number) {
    const auto share = batch_.share(number, reader);
    if (share.count == 0) continue;
    const int64_t first = data_position_ + share.begin;
    sequences += fmt::format("{}{}", sequences.empty() ? "" : ", ", first);
    if (share.count > 1) sequences += fmt::format("-{}", first + share.count - 1);
  }
  return sequences;
}

// Brings together what every rank's own sequences cost, and names the rank with the costliest: collective.
base::Error Session::spiked(const StepReport& report, double median, double own_loss) {
  int64_t sequences = 0;
  for (int64_t number = 0; number < batch_.gradient_accumulation; ++number)
    sequences += batch_.share(number, groups_.reader()).count;
  const double loss_of_a_sequence = sequences > 0 ? own_loss / static_cast<double>(sequences) : 0.0;
  ASSIGN_OR_RETURN(const auto all, hear_all(*groups_.world, loss_of_a_sequence, options_.node_name));
  const auto most =
      std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.word < b.word; });
  const int rank = static_cast<int>(most - all.begin());
  has_good_state_ = true;
  return Error(
      Code::kRefused,
      fmt::format(
          "step {}: loss {:.4f} is a spike: more than {} times {:.4f}, the median of the steps before it "
          "([fault_tolerance] spike_factor); the costliest sequences are {} of {}",
          report.step, report.loss, options_.spike_factor, median, sequences_of(rank),
          most->rank_text(rank)));
}

// A GPU's weights are not read back for this: the sum of their squares in a fixed order tells nearly every change.
Result<uint64_t> Session::hash_of_masters() {
  if (backend_.kind() == kernels::DeviceKind::kCpu) return base::crc32c(std::as_bytes(engine_.master()));
  ASSIGN_OR_RETURN(const double squares, sum_of_squares(engine_.master()));
  return std::bit_cast<uint64_t>(squares);
}

// The error is kCorrupt on the ranks that differ, so that the run's verdict names one of them, and kPeerLost on the others.
Result<void> Session::compare_replicas() {
  if (groups_.replicas() == 1) return {};
  engine_.settle();
  const auto scope = traced_scope("compare", -1);
  ASSIGN_OR_RETURN(const uint64_t own, hash_of_masters());
  ASSIGN_OR_RETURN(const auto all, hear_all(*groups_.world, own, options_.node_name));
  std::vector<uint64_t> hashes;
  for (const auto& said : all) hashes.push_back(said.word);
  const ReplicaDifference difference = compare_hashes(hashes, groups_.replicas(), options_.stage.stages);
  if (difference.ranks.empty()) return {};
  std::string names;
  for (const int rank : difference.ranks) names += (names.empty() ? "" : ", ") + all[rank].rank_text(rank);
  const bool is_one = std::find(difference.ranks.begin(), difference.ranks.end(), groups_.world->rank()) !=
                      difference.ranks.end();
  return Error(
      is_one ? Code::kCorrupt : Code::kPeerLost,
      fmt::format("after step {} the weights of {} differ from those of {}: memory, a processor or a link "
                  "changed a number without an error; every checkpoint was compared before it was written",
                  steps_done_, names, difference.is_certain ? "all their replicas" : "each other"));
}

}  // namespace shardrun::train
