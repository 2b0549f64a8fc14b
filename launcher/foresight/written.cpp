#include "launcher/foresight/written.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/foresight/question.h"

namespace shardrun::launcher {
namespace {

constexpr size_t kMostMends = 3;
constexpr int kMostPlans = 64;        // layouts whose exact memory is asked for
constexpr int64_t kMostNodes = 1024;  // that are tried where no layout fits on the job's own

// The settings in which `other` differs from `layout`, as a spec has them.
std::vector<std::string> changes(const Layout& layout, const Layout& other) {
  std::vector<std::string> found;
  if (other.micro_batch != layout.micro_batch)
    found.push_back(fmt::format("micro_batch {}", other.micro_batch));
  if (other.checkpointing != layout.checkpointing)
    found.push_back(fmt::format("activation_checkpointing {}", name_of(other.checkpointing)));
  if (other.strategy != layout.strategy || other.shard_degree != layout.shard_degree)
    found.push_back(sharding_text(other));
  if (other.tensor_parallel != layout.tensor_parallel)
    found.push_back(fmt::format("tensor_parallel {}", other.tensor_parallel));
  if (other.activation_offload != layout.activation_offload)
    found.push_back(fmt::format("activation_offload {}", other.activation_offload));
  if (other.optimizer_offload != layout.optimizer_offload)
    found.push_back(fmt::format("optimizer_offload {}", other.optimizer_offload));
  return found;
}

// What a rank holds: by its own plan, or by the estimate for any stack.
double bytes_of(const spec::JobSpec& spec, bool own, const Question& question, const Candidate& one,
                bool& fits) {
  fits = one.fits;
  if (!own) return one.bytes;
  const OwnMemory memory = own_memory(spec, question, one.layout);
  fits = memory.fits && !is_refused(spec, question, one.layout);
  return static_cast<double>(memory.bytes);
}

// The fewest changes that make it fit, and of those the fastest, one for each set of settings.
std::vector<std::string> mends_here(const spec::JobSpec& spec, bool own, const Question& question,
                                    const Layout& layout) {
  Answer answer = search(question);
  std::vector<std::pair<size_t, Candidate>> ordered;
  for (const Candidate& one : answer.candidates)
    if (one.fits || own) ordered.emplace_back(changes(layout, one.layout).size(), one);
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second.seconds < b.second.seconds;
  });
  const double usable = question.machine.memory_bytes * kUsableMemory;
  std::vector<std::string> mends;
  int asked = 0;
  for (const auto& [count, one] : ordered) {
    if (mends.size() == kMostMends || ++asked > kMostPlans) break;
    bool fits = false;
    const double bytes = bytes_of(spec, own, question, one, fits);
    if (fits && count > 0)
      mends.push_back(fmt::format("with {}: {:.1f} GB ({}), {:.0f} % are left",
                                  fmt::join(changes(layout, one.layout), ", "), bytes / 1e9,
                                  gigabytes_text(times(own ? kHeldOfPlan : kHeldOfEstimate, bytes)),
                                  100.0 * (1.0 - bytes / usable)));
  }
  return mends;
}

// The fewest nodes, of twice as many and so on, on which any layout fits.
std::vector<std::string> mends_with_nodes(Question question) {
  const int64_t per_node = question.global_batch / question.nodes;
  for (question.nodes *= 2; question.nodes <= kMostNodes; question.nodes *= 2) {
    question.global_batch = std::max<int64_t>(question.global_batch, per_node * question.nodes);
    const Answer answer = search(question);
    if (answer.best)
      return {fmt::format("on {} nodes: {}, {:.1f} GB ({})", question.nodes, layout_text(answer.best->layout),
                          answer.best->bytes / 1e9,
                          gigabytes_text(times(kHeldOfEstimate, answer.best->bytes)))};
  }
  return {fmt::format("nothing: no layout fits up to {} nodes", kMostNodes)};
}

}  // namespace

std::optional<Written> written_layout(const spec::JobSpec& spec, bool own, const Question& question,
                                      const Belief& belief) {
  const auto layout = layout_as_written(spec, question);
  if (!layout) return std::nullopt;
  const MemoryForecast memory =
      forecast_memory(question.model, *layout, question.traits, question.machine.per_node);
  Written written{.layout = *layout,
                  .active_bytes = memory.total() - memory.overhead,
                  .reserved_bytes = memory.total(),
                  .usable_bytes = question.machine.memory_bytes * kUsableMemory};
  bool fits = memory.total() <= written.usable_bytes;
  if (own) {
    const OwnMemory planned = own_memory(spec, question, *layout);
    written.active_bytes = written.reserved_bytes = static_cast<double>(planned.bytes);
    fits = planned.fits;
  }
  written.reserved_between = times(own ? kHeldOfPlan : kHeldOfEstimate, written.reserved_bytes);
  if (fits) {
    written.sure = foresee(question, *layout, belief);
    return written;
  }
  written.mends = mends_here(spec, own, question, *layout);
  if (written.mends.empty()) written.mends = mends_with_nodes(question);
  return written;
}

}  // namespace shardrun::launcher
