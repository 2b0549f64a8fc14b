#include "launcher/forecast/measured.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/plan/model/llama.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using record::CollectiveProbe;
using record::Spread;
using record::StepProbe;

using Terms = std::array<double, 5>;

ModelShape shape_of_probe(const StepProbe& probe) {
  return plan::shape_of(plan::LlamaConfig{.layers = 1,
                                          .hidden = static_cast<int>(probe.hidden),
                                          .heads = static_cast<int>(probe.heads),
                                          .kv_heads = static_cast<int>(probe.kv_heads),
                                          .ffn = static_cast<int>(probe.ffn),
                                          .vocab = static_cast<int>(probe.vocab)});
}

// In units that make the coefficients of a few: microseconds, GFLOP, millions of values.
Terms layer_terms(const ModelShape& model, double tokens, int sequence_length) {
  const double hidden = model.hidden;
  return {1e-6, 2e-9 * tokens * model.layer_parameters(), 2e-9 * tokens * sequence_length * hidden,
          1e-6 * tokens * (8.0 * hidden + 3.0 * model.ffn), 1e-6 * model.layer_parameters()};
}

Terms head_terms(const ModelShape& model, double tokens) {
  return {1e-6, 2e-9 * tokens * model.table_parameters(), 1e-6 * tokens * model.vocab,
          1e-6 * tokens * model.hidden, 1e-6 * model.table_parameters()};
}

Terms table_terms(const ModelShape& model, double tokens) {
  return {1e-6, 1e-6 * tokens * model.hidden, 1e-6 * model.table_parameters(), 0.0, 0.0};
}

// Returns the probe of a layer, or of a head, of these very sizes; null where there is none.
const StepProbe* probe_of_layer(const std::vector<StepProbe>& probes, const ModelShape& model, double tokens,
                                int sequence_length) {
  for (const StepProbe& probe : probes) {
    const ModelShape shape = shape_of_probe(probe);
    if (shape.hidden == model.hidden && shape.kv_width == model.kv_width && shape.ffn == model.ffn &&
        shape.ffn_matrices == model.ffn_matrices && shape.query_width() == model.query_width() &&
        static_cast<double>(probe.tokens()) == tokens && probe.sequence_length == sequence_length)
      return &probe;
  }
  return nullptr;
}
const StepProbe* probe_of_head(const std::vector<StepProbe>& probes, const ModelShape& model, double tokens) {
  for (const StepProbe& probe : probes)
    if (probe.hidden == model.hidden && probe.vocab == model.vocab &&
        static_cast<double>(probe.tokens()) == tokens)
      return &probe;
  return nullptr;
}

// Of what `bytes` says of a collective, the share that a rank sends to others: over the network, where its group has any.
double share_sent(CollectiveKind kind, int64_t ranks, int64_t nodes) {
  constexpr double kLarge = 1e9;
  const auto count = static_cast<double>(ranks);
  if (nodes > 1)
    return traffic_of(kind, {ranks, nodes}, kLarge).bytes / kLarge * static_cast<double>(nodes) / count;
  return (kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * (count - 1.0) / count;
}

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
  }
  return "";
}

const char* among_of(const Placement& placement) {
  if (placement.nodes == 1) return "node";
  return placement.ranks == placement.nodes ? "network" : "all";
}

}  // namespace

CollectiveCurve::CollectiveCurve(CollectiveKind kind, const Placement& placement,
                                 std::vector<const CollectiveProbe*> points)
    : points_(std::move(points)), share_(share_sent(kind, placement.ranks, placement.nodes)) {
  const CollectiveProbe& first = *points_.front();
  const double share = share_sent(kind, first.ranks, first.among == "node" ? 1 : first.nodes);
  for (const CollectiveProbe* point : points_) volumes_.push_back(share * static_cast<double>(point->bytes));
}

// Straight lines between the points. Nothing is below the first point, and beyond the last what comes on top of the first grows with
// the volume: a line through the last two would have the noise of both.
template <typename ValueOf>
double CollectiveCurve::between(double volume, const ValueOf& value_of) const {
  if (points_.size() == 1 || volume <= volumes_.front()) return value_of(*points_.front());
  if (volume > volumes_.back()) {
    const double first = value_of(*points_.front()), last = value_of(*points_.back());
    return first +
           std::max(last - first, 0.0) * (volume - volumes_.front()) / (volumes_.back() - volumes_.front());
  }
  size_t upper = 1;
  while (upper + 1 < points_.size() && volumes_[upper] < volume) ++upper;
  const double low = value_of(*points_[upper - 1]), high = value_of(*points_[upper]);
  const double along = (volume - volumes_[upper - 1]) / (volumes_[upper] - volumes_[upper - 1]);
  return std::max(low + along * (high - low), std::min(low, high));
}

// Where the line through the two smallest meets no bytes at all. Over slow links even those of the smallest take their time.
double CollectiveCurve::latency() const {
  const double smallest = points_.front()->seconds.median;
  if (points_.size() == 1) return smallest;
  const double per_byte = (points_[1]->seconds.median - smallest) / (volumes_[1] - volumes_[0]);
  return std::clamp(smallest - per_byte * volumes_[0], 0.0, smallest);
}

CollectiveSeconds CollectiveCurve::at(double bytes) const {
  CollectiveSeconds seconds;
  if (points_.empty()) return seconds;
  const double volume = sent(bytes);
  const auto wall = [](const CollectiveProbe& probe) { return probe.seconds.median; };
  seconds.wall = between(volume, wall);
  seconds.latency = std::min(latency(), seconds.wall);
  seconds.pace =
      between(std::min(volume, volumes_.back()), [](const CollectiveProbe& probe) { return probe.pace; });
  seconds.cpu =
      between(volume, [](const CollectiveProbe& probe) { return probe.cpu_beside * probe.cpu_seconds; });
  seconds.over_network = points_.front()->among != "node";
  return seconds;
}

double MeasuredMachine::sum(const Terms& coefficients, const Terms& terms) {
  double seconds = 0.0;
  for (size_t i = 0; i < kTerms; ++i) seconds += coefficients[i] * terms[i];
  return seconds;
}

// Non-negative least squares of relative errors by coordinate descent.
template <typename TermsOf>
MeasuredMachine::Terms MeasuredMachine::fit(const TermsOf& terms_of, Spread StepProbe::*seconds) {
  constexpr int kSweeps = 20000;
  std::vector<Terms> rows;
  for (const StepProbe& probe : calibration_.steps) {
    Terms row = terms_of(probe);
    const double measured = (probe.*seconds).median;
    if (measured <= 0.0) continue;
    for (double& term : row) term /= measured;
    rows.push_back(row);
  }
  Terms coefficients{};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kTerms; ++i) {
      double along = 0.0, squares = 0.0;
      for (const Terms& row : rows) {
        along += row[i] * (1.0 - sum(coefficients, row) + coefficients[i] * row[i]);
        squares += row[i] * row[i];
      }
      coefficients[i] = squares > 0.0 ? std::max(0.0, along / squares) : 0.0;
    }
  }
  for (const Terms& row : rows) worst_fit_ = std::max(worst_fit_, std::abs(sum(coefficients, row) - 1.0));
  return coefficients;
}

void MeasuredMachine::fit_all() {
  const auto of_layer = [](const StepProbe& p) {
    return layer_terms(shape_of_probe(p), static_cast<double>(p.tokens()),
                       static_cast<int>(p.sequence_length));
  };
  const auto of_head = [](const StepProbe& p) {
    return head_terms(shape_of_probe(p), static_cast<double>(p.tokens()));
  };
  const auto of_table = [](const StepProbe& p) {
    return table_terms(shape_of_probe(p), static_cast<double>(p.tokens()));
  };
  table_forward_ = fit(of_table, &StepProbe::table_forward);
  table_backward_ = fit(of_table, &StepProbe::table_backward);
  worst_fit_ = 0.0;  // a table look-up is no part of a step that anybody notices
  head_forward_ = fit(of_head, &StepProbe::head_forward);
  head_backward_ = fit(of_head, &StepProbe::head_backward);
  layer_forward_ = fit(of_layer, &StepProbe::layer_forward);
  layer_backward_ = fit(of_layer, &StepProbe::layer_backward);
  layer_selective_ = fit(of_layer, &StepProbe::layer_backward_selective);
}

Result<MeasuredMachine> MeasuredMachine::of(const record::Calibration& calibration) {
  if (calibration.steps.size() < 3 || calibration.update_seconds_per_parameter.median <= 0.0)
    return Error(Code::kInvalid, "the calibration has no steps; calibrate again");
  MeasuredMachine machine(calibration);
  std::stable_sort(machine.calibration_.collectives.begin(), machine.calibration_.collectives.end(),
                   [](const CollectiveProbe& a, const CollectiveProbe& b) { return a.bytes < b.bytes; });
  machine.fit_all();
  return machine;
}

BlockSeconds MeasuredMachine::table(const ModelShape& model, double tokens) const {
  const Terms terms = table_terms(model, tokens);
  return {sum(table_forward_, terms), sum(table_backward_, terms)};
}

BlockSeconds MeasuredMachine::layer(const ModelShape& model, double tokens, int sequence_length,
                                    spec::Checkpointing checkpointing) const {
  const Terms terms = layer_terms(model, tokens, sequence_length);
  BlockSeconds block{sum(layer_forward_, terms), sum(layer_backward_, terms)};
  if (checkpointing == spec::Checkpointing::kSelective) block.backward = sum(layer_selective_, terms);
  if (const StepProbe* probe = probe_of_layer(calibration_.steps, model, tokens, sequence_length)) {
    const bool selective = checkpointing == spec::Checkpointing::kSelective;
    block = {probe->layer_forward.median,
             (selective ? probe->layer_backward_selective : probe->layer_backward).median};
  }
  if (checkpointing == spec::Checkpointing::kFull) block.backward += block.forward;
  return block;
}

BlockSeconds MeasuredMachine::head(const ModelShape& model, double tokens) const {
  if (const StepProbe* probe = probe_of_head(calibration_.steps, model, tokens))
    return {probe->head_forward.median, probe->head_backward.median};
  const Terms terms = head_terms(model, tokens);
  return {sum(head_forward_, terms), sum(head_backward_, terms)};
}

double MeasuredMachine::update(double parameters) const {
  return calibration_.update_seconds_per_parameter.median * parameters;
}

double MeasuredMachine::add(double elements) const {
  constexpr double kBytes = 12.0;  // two read, one written
  const double rate = calibration_.memory_bytes_per_second.median;
  return rate > 0.0 ? kBytes * elements / rate : 0.0;
}

Result<CollectiveCurve> MeasuredMachine::collective(CollectiveKind kind, const Placement& placement) const {
  if (placement.ranks <= 1) return CollectiveCurve();
  const std::string among = among_of(placement);
  int64_t nodes = 0;
  const auto distance = [&](int64_t count) {
    return std::abs(std::log2(static_cast<double>(count) / static_cast<double>(placement.nodes_at_it)));
  };
  for (const CollectiveProbe& probe : calibration_.collectives)
    if (probe.among == among && (nodes == 0 || distance(probe.nodes) < distance(nodes))) nodes = probe.nodes;
  std::vector<const CollectiveProbe*> points;
  for (const CollectiveProbe& probe : calibration_.collectives)
    if (probe.among == among && probe.nodes == nodes && probe.kind == name_of(kind)) points.push_back(&probe);
  if (points.empty())
    return Error(
        Code::kInvalid,
        fmt::format("collectives of {} ranks on {} nodes were not measured; calibrate on at least two "
                    "nodes, and with as many ranks on each as the job has",
                    placement.ranks, placement.nodes));
  return CollectiveCurve(kind, placement, std::move(points));
}

double MeasuredMachine::cpu_share(int64_t nodes, int64_t ranks_per_node) const {
  const double wanted = static_cast<double>(ranks_per_node * calibration_.cpus_per_rank);
  const double offered = static_cast<double>(calibration_.cpus_per_node);
  const double sharing =
      std::max(1.0, std::min(static_cast<double>(nodes), static_cast<double>(calibration_.nodes) /
                                                             static_cast<double>(calibration_.machines)));
  return std::min(1.0, offered / wanted) / sharing;
}

double MeasuredMachine::peak(const std::string& type) const {
  double best = 0.0;
  for (const record::GemmRate& gemm : calibration_.gemms)
    if (gemm.type == type) best = std::max(best, gemm.flops_per_second.median);
  return best;
}

}  // namespace shardrun::launcher
