#include "runtime/trainer/train/optimizer.h"

#include <algorithm>
#include <utility>

#include "runtime/trainer/train/initialize.h"

namespace shardrun::train {
namespace {

std::vector<optim::TensorRange> tensor_ranges(const std::vector<optim::UpdateRange>& ranges) {
  std::vector<optim::TensorRange> tensors;
  for (const optim::UpdateRange& range : ranges)
    tensors.push_back({range.begin, range.count, range.tensor, range.weight_decay});
  return tensors;
}

}  // namespace

Result<Optimizer> Optimizer::create(const OptimizerOptions& options,
                                    std::span<const model::BlockLayout> blocks,
                                    const plan::ShardLayout& layout, int shard_rank,
                                    kernels::Backend& backend) {
  const auto* adamw = std::get_if<optim::AdamWOptions>(&options.kind);
  if (adamw == nullptr && options.offload && backend.kind() == kernels::DeviceKind::kGpu)
    return base::Error(
        base::Code::kUnsupported,
        "LAMB reads its moments twice in a step, too often for the host's memory; set [memory] "
        "optimizer_offload = false, or [optimizer] kind = \"adamw\"");
  Optimizer optimizer(update_ranges(blocks, layout, shard_rank));
  if (options.packs) {
    SHARDRUN_CHECK(adamw != nullptr && !options.offload);
    if (backend.kind() == kernels::DeviceKind::kGpu)
      return base::Error(base::Code::kUnsupported,
                         "a GPU has no 8-bit moments yet; set [optimizer] kind = \"adamw\"");
    return with_packed_moments(std::move(optimizer), *adamw, layout.flat_shard_elements);
  }
  if (auto taken = optimizer.take_memory(options, layout.flat_shard_elements, backend); !taken)
    return std::move(taken).error().context("the optimizer's moments");
  if (adamw != nullptr) {
    optimizer.adamw_.emplace(optimizer.ranges_, *adamw, optimizer.moment1_, optimizer.moment2_, backend);
  } else {
    int64_t tensors = 0;
    for (const model::BlockLayout& block : blocks) tensors += static_cast<int64_t>(block.parameters.size());
    ASSIGN_OR_RETURN(auto lamb, optim::Lamb::create(tensor_ranges(optimizer.ranges_), tensors,
                                                    std::get<optim::LambOptions>(options.kind),
                                                    optimizer.moment1_, optimizer.moment2_, backend));
    optimizer.lamb_.emplace(std::move(lamb));
  }
  return optimizer;
}

Result<Optimizer> Optimizer::with_packed_moments(Optimizer optimizer, const optim::AdamWOptions& options,
                                                 int64_t elements) {
  auto packed = optim::PackedAdamW::create(optimizer.ranges_, options, elements);
  if (!packed) return std::move(packed).error().context("the optimizer's moments");
  optimizer.packed_.emplace(std::move(packed).value());
  ASSIGN_OR_RETURN(optimizer.memory_,
                   base::Memory::create(2 * plan::moment_bytes(elements)));  // never touched
  optimizer.name_moments(elements);
  return optimizer;
}

void Optimizer::name_moments(int64_t elements) {
  const auto count = static_cast<size_t>(elements);
  moment1_ = {reinterpret_cast<float*>(memory_.data()), count};
  moment2_ = {reinterpret_cast<float*>(memory_.data() + plan::moment_bytes(elements)), count};
}

bool Optimizer::read_packed(std::span<const float> values, float* to) const {
  for (const int moment : {0, 1}) {
    const std::span<float> names = moment == 0 ? moment1_ : moment2_;
    const std::less<> before;
    if (!packed_ || before(values.data(), names.data()) ||
        !before(values.data(), names.data() + names.size()))
      continue;
    packed_->read(moment, values.data() - names.data(), std::span(to, values.size()));
    return true;
  }
  return false;
}

Result<void> Optimizer::take_memory(const OptimizerOptions& options, int64_t elements,
                                    kernels::Backend& backend) {
  if (options.offload && backend.kind() == kernels::DeviceKind::kGpu) {
    ASSIGN_OR_RETURN(auto moments, optim::HostMoments::create(elements, backend, options.offload_piece));
    host_moments_ = std::move(moments);
    moment1_ = host_moments_->moment1();
    moment2_ = host_moments_->moment2();
    return {};
  }
  const int64_t bytes = 2 * plan::moment_bytes(elements);
  ASSIGN_OR_RETURN(auto memory, options.offload
                                    ? base::Memory::create_in_file(bytes, options.offload_directory)
                                    : backend.allocate(bytes));
  memory_ = std::move(memory);
  name_moments(elements);
  return {};
}

Result<void> Optimizer::update(std::span<float> master, std::span<const float> gradient,
                               double gradient_scale, double learning_rate, int64_t step,
                               const AllReduce& all_reduce) {
  if (lamb_) {
    std::vector<double> sums(lamb_->sums());
    lamb_->measure(master, gradient, gradient_scale, step, sums);
    RETURN_IF_ERROR(all_reduce(sums));
    lamb_->apply(master, learning_rate, step, sums);
    return {};
  }
  if (packed_) {
    packed_->update(master, gradient, gradient_scale, learning_rate, step);
    return {};
  }
  SHARDRUN_CHECK(!updates_parts());
  adamw_->begin_step(gradient_scale, learning_rate, step);
  return update_on_host(master, gradient);
}

void Optimizer::update_part(std::span<float> master, std::span<const float> gradient, int64_t begin,
                            int64_t count) {
  const auto starts_before = [](int64_t element) {
    return [element](const optim::UpdateRange& range) { return range.begin < element; };
  };
  const auto first = std::partition_point(ranges_.begin(), ranges_.end(), starts_before(begin));
  const auto end = std::partition_point(first, ranges_.end(), starts_before(begin + count));
  for (const optim::UpdateRange& range : std::span(first, end)) {
    const int64_t window = memory_.is_in_file() ? plan::kMomentWindow : range.count;
    for (int64_t done = 0; done < range.count; done += window) {
      const optim::UpdateRange part{range.begin + done, std::min(window, range.count - done),
                                    range.weight_decay};
      adamw_->update(part, master, gradient);
      const auto at = static_cast<size_t>(part.begin), elements = static_cast<size_t>(part.count);
      for (const std::span<float> moment : {moment1_, moment2_}) give_back(moment.subspan(at, elements));
    }
  }
}

Result<void> Optimizer::update_on_host(std::span<float> master, std::span<const float> gradient) {
  return host_moments_->pass([&](int64_t first, std::span<float> moment1, std::span<float> moment2) {
    const int64_t end = first + static_cast<int64_t>(moment1.size());
    for (const optim::UpdateRange& range : ranges_) {
      const int64_t from = std::max(first, range.begin), to = std::min(end, range.begin + range.count);
      if (from >= to) continue;
      const auto at = static_cast<size_t>(from - first), count = static_cast<size_t>(to - from);
      adamw_->update({from, to - from, range.weight_decay}, master, gradient, moment1.subspan(at, count),
                     moment2.subspan(at, count));
    }
  });
}

bool Optimizer::is_on_host(std::span<const float> values) const {
  if (!host_moments_) return false;
  const auto lies_in = [&](std::span<float> moment) {
    return std::greater_equal<>()(values.data(), moment.data()) &&
           std::less<>()(values.data(), moment.data() + moment.size());
  };
  return lies_in(moment1_) || lies_in(moment2_);
}

void Optimizer::give_back(std::span<const float> values) const {
  if (!memory_.is_in_file()) return;
  const int64_t at = reinterpret_cast<const std::byte*>(values.data()) - memory_.data();
  if (at < 0 || at >= memory_.bytes()) return;
  // The page that it begins in held the values before, which are done with too.
  const int64_t begin = at / plan::kMomentPage * plan::kMomentPage;
  memory_.evict(begin, at + static_cast<int64_t>(values.size_bytes()) - begin);
}

}  // namespace shardrun::train
