#include "launcher/plan/scale.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::Scaling;

// A job with its scaling replaced, on one number of nodes.
struct Variant {
  spec::JobSpec spec;
  std::optional<Error> refusal;
};

Variant exchanged(spec::JobSpec spec, Scaling scaling, const record::LaunchPlan& smallest) {
  Variant variant;
  spec::BatchSpec& batch = spec.batch;
  const int64_t global = smallest.batch.global_batch, nodes = spec.resources.nodes;
  if (scaling == Scaling::kStrong) {
    batch.global_batch = global;
    batch.gradient_accumulation.reset();
    batch.scaling = Scaling::kStrong;
  } else if (global * nodes % smallest.nodes == 0) {
    batch.global_batch = global * nodes / smallest.nodes;
  } else {
    variant.refusal =
        Error(Code::kInvalid,
              fmt::format("{}: global_batch {} on {} nodes is no whole number of sequences on {}; use "
                          "multiples of {} nodes",
                          spec.origin("batch.global_batch"), global, smallest.nodes, nodes, smallest.nodes));
  }
  variant.spec = std::move(spec);
  return variant;
}

// Returns what must be set on top of the job's file to make it this plan.
std::vector<std::string> overrides_of(const spec::JobSpec& spec, bool is_exchanged,
                                      const record::LaunchPlan& plan) {
  std::vector<std::string> overrides = {fmt::format("resources.nodes={}", plan.nodes)};
  if (spec.fault_tolerance.min_nodes > 0)  // a run of a sweep measures its own number of nodes, or fails
    overrides.push_back("fault_tolerance.min_nodes=0");
  if (is_exchanged && spec.batch.scaling == Scaling::kWeak)
    overrides.push_back(fmt::format("batch.gradient_accumulation={}", plan.batch.gradient_accumulation));
  if (is_exchanged && spec.batch.scaling == Scaling::kStrong)
    overrides.push_back(fmt::format("batch.global_batch={}", plan.batch.global_batch));
  return overrides;
}

Result<int64_t> node_count(std::string_view text) {
  int64_t count = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (failure != std::errc() || end != text.data() + text.size() || count < 1 || count > 65536) {
    return Error(Code::kInvalid,
                 fmt::format("--nodes: \"{}\" is no number of nodes; write e.g. 1,2,4 or 1-8", text));
  }
  return count;
}

}  // namespace

int64_t ScaleRow::micro_steps() const {
  if (!plan) return 0;
  const plan::BatchPlan& batch = plan->batch;
  const int64_t before_last = (batch.gradient_accumulation - 1) * batch.data_parallel;
  const int64_t left = batch.global_batch - before_last * batch.micro_batch;
  return before_last + std::min(left, batch.data_parallel);
}

Result<std::vector<ScaleRow>> scale_table(const spec::JobSpec& spec, std::span<const int64_t> nodes,
                                          const PlanContext& context, std::optional<Scaling> scaling) {
  SHARDRUN_CHECK(!nodes.empty() && nodes.front() >= 1);
  const bool is_exchanged = scaling && *scaling != spec.batch.scaling;
  std::optional<record::LaunchPlan> smallest;
  std::vector<ScaleRow> rows;
  for (const int64_t count : nodes) {
    Variant variant{spec, std::nullopt};
    variant.spec.resources.nodes = static_cast<int>(count);
    if (smallest) variant = exchanged(std::move(variant.spec), *scaling, *smallest);
    ScaleRow row;
    row.nodes = count;
    auto plan = variant.refusal ? Result<record::LaunchPlan>(*variant.refusal)
                                : solve_launch_plan(variant.spec, context);
    if (plan) {
      const auto own = overrides_of(spec, is_exchanged, *plan);
      plan->overrides.insert(plan->overrides.end(), own.begin(), own.end());
      row.plan = std::move(plan).value();
    } else {
      row.refusal = plan.error().to_string();
      row.nearest = nearest_nodes(variant.spec, count);
    }
    if (is_exchanged && !smallest) {
      if (!row.plan) return std::move(plan).error();
      smallest = row.plan;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<std::vector<int64_t>> parse_node_counts(std::string_view text) {
  std::set<int64_t> counts;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t dash = item.find('-');
    const auto first = node_count(item.substr(0, dash));
    if (!first) return first.error();
    ASSIGN_OR_RETURN(const auto last,
                     dash == std::string_view::npos ? first : node_count(item.substr(dash + 1)));
    if (last < *first)
      return Error(Code::kInvalid,
                   fmt::format("--nodes: \"{}\" runs backwards; write the smaller first", item));
    for (int64_t count = *first; count <= last; ++count) counts.insert(count);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return std::vector<int64_t>(counts.begin(), counts.end());
}

}  // namespace shardrun::launcher
