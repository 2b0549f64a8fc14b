#include "runtime/train/optimizer.h"

#include <algorithm>
#include <utility>

#include "runtime/train/initialize.h"

namespace shardrun::train {
namespace {

constexpr int64_t kWindowElements = int64_t{1} << 20;  // of one moment: 4 MiB

constexpr int64_t kPage = 4096;

int64_t moment_bytes(int64_t elements) {
  return (elements * static_cast<int64_t>(sizeof(float)) + kPage - 1) / kPage * kPage;
}

std::vector<optim::TensorRange> tensor_ranges(const std::vector<optim::UpdateRange>& ranges) {
  std::vector<optim::TensorRange> tensors;
  for (const optim::UpdateRange& range : ranges)
    tensors.push_back({range.begin, range.count, range.tensor, range.weight_decay});
  return tensors;
}

}  // namespace

int64_t Optimizer::planned_bytes(const shard::ShardLayout& layout) {
  return 2 * moment_bytes(layout.flat_shard_elements);
}

int64_t Optimizer::offload_window(const shard::ShardLayout& layout) {
  return 2 * moment_bytes(std::min(kWindowElements, layout.flat_shard_elements));
}

Result<Optimizer> Optimizer::create(const OptimizerOptions& options,
                                    std::span<const model::BlockLayout> blocks,
                                    const shard::ShardLayout& layout, int shard_rank,
                                    kernels::Backend& backend) {
  const auto* adamw = std::get_if<optim::AdamWOptions>(&options.kind);
  if (backend.kind() == kernels::DeviceKind::kGpu && !options.offload_directory.empty())
    return base::Error(base::Code::kUnsupported,
                       "a GPU's optimizer has its moments there; set [memory] "
                       "optimizer_offload = false, or [resources] device = \"cpu\"");
  auto memory = options.offload_directory.empty()
                    ? backend.allocate(planned_bytes(layout))
                    : base::Memory::create_in_file(planned_bytes(layout), options.offload_directory);
  if (!memory) return std::move(memory).error().context("the optimizer's moments");
  Optimizer optimizer(std::move(memory).value(), layout.flat_shard_elements,
                      update_ranges(blocks, layout, shard_rank));
  if (adamw != nullptr) {
    optimizer.adamw_.emplace(optimizer.ranges_, *adamw, optimizer.moment1_, optimizer.moment2_, backend);
  } else {
    int64_t tensors = 0;
    for (const model::BlockLayout& block : blocks) tensors += static_cast<int64_t>(block.parameters.size());
    auto lamb = optim::Lamb::create(tensor_ranges(optimizer.ranges_), tensors,
                                    std::get<optim::LambOptions>(options.kind), optimizer.moment1_,
                                    optimizer.moment2_, backend);
    if (!lamb) return std::move(lamb).error();
    optimizer.lamb_.emplace(std::move(lamb).value());
  }
  return optimizer;
}

Optimizer::Optimizer(base::Memory memory, int64_t elements, std::vector<optim::UpdateRange> ranges)
    : memory_(std::move(memory)), ranges_(std::move(ranges)) {
  const auto count = static_cast<size_t>(elements);
  moment1_ = {reinterpret_cast<float*>(memory_.data()), count};
  moment2_ = {reinterpret_cast<float*>(memory_.data() + moment_bytes(elements)), count};
}

Result<void> Optimizer::update(std::span<float> master, std::span<const float> gradient,
                               double gradient_scale, double learning_rate, int64_t step,
                               const AllReduce& all_reduce) {
  if (lamb_) {
    std::vector<double> sums(static_cast<size_t>(lamb_->sums()));
    lamb_->measure(master, gradient, gradient_scale, step, sums);
    RETURN_IF_ERROR(all_reduce(sums));
    lamb_->apply(master, learning_rate, step, sums);
    return {};
  }
  adamw_->begin_step(gradient_scale, learning_rate, step);
  for (const optim::UpdateRange& range : ranges_) {
    const int64_t window = memory_.is_in_file() ? kWindowElements : range.count;
    for (int64_t done = 0; done < range.count; done += window) {
      const optim::UpdateRange part{range.begin + done, std::min(window, range.count - done),
                                    range.weight_decay};
      adamw_->update(part, master, gradient);
      const auto begin = static_cast<size_t>(part.begin), count = static_cast<size_t>(part.count);
      for (const std::span<float> moment : {moment1_, moment2_}) give_back(moment.subspan(begin, count));
    }
  }
  return {};
}

void Optimizer::give_back(std::span<const float> values) const {
  if (!memory_.is_in_file()) return;
  const int64_t at = reinterpret_cast<const std::byte*>(values.data()) - memory_.data();
  if (at < 0 || at >= memory_.bytes()) return;
  // The page that it begins in held the values before, which are done with too.
  const int64_t begin = at / kPage * kPage;
  memory_.evict(begin, at + static_cast<int64_t>(values.size_bytes()) - begin);
}

}  // namespace shardrun::train
