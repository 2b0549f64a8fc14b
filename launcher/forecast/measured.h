// A machine as `shardrun calibrate` measured it: what the built-in trainer's blocks and collectives take there.
//
// Blocks of a shape that was measured take what it took; those of others follow from a fit of a few terms that are all ≥ 0: a
// constant, the matrix products, the attention, the passes over activations and over weights. Collectives of other sizes lie between
// the measured ones, by what crosses the slowest kind of link on the way (traffic.h). Nothing here is taken from anywhere but the
// calibration.
//
// Units: seconds of CPU for computing (a rank with its CPUs to itself), of the wall for collectives; bytes.
// Thread rule: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/forecast/machine.h"
#include "launcher/forecast/step.h"
#include "launcher/forecast/traffic.h"
#include "runtime/base/result.h"
#include "runtime/record/calibration.h"

namespace shardrun::launcher {

struct BlockSeconds {
  double forward = 0.0, backward = 0.0;
};

// One kind of collective by size, of each while two are under way.
struct CollectiveSeconds {
  double wall = 0.0;
  double latency = 0.0;       // of it, what passes for two at once: what one without bytes would take
  double cpu = 0.0;           // that its rank spends on it while it computes
  double pace = 1.0;          // the share of its speed that it has while its rank computes
  bool over_network = false;  // its bytes take the links between nodes, not a node's memory alone
};

// Where the ranks of a group are.
struct Placement {
  int64_t ranks = 1, nodes = 1;  // of the group
  int64_t nodes_at_it = 1;       // of the job: groups like it run on all of them
};

// One kind of collective of one group, by its size.
class CollectiveCurve {
 public:
  CollectiveCurve() = default;  // of a rank alone, which waits for nobody
  // `points`: as they were measured, ascending, at least one; they outlive this.
  CollectiveCurve(CollectiveKind kind, const Placement& placement,
                  std::vector<const record::CollectiveProbe*> points);

  // `bytes`: that the group holds together; all_reduce: that each rank holds.
  CollectiveSeconds at(double bytes) const;
  // Bytes that a rank sends to others in it: to other nodes, where there are several.
  double sent(double bytes) const { return bytes * share_; }

 private:
  template <typename ValueOf>
  double between(double volume, const ValueOf& value_of) const;
  double latency() const;

  std::vector<const record::CollectiveProbe*> points_;
  std::vector<double> volumes_;  // that a rank sends, by point
  double share_ = 0.0;
};

class MeasuredMachine {
 public:
  // kInvalid: too little was measured for any prediction.
  static base::Result<MeasuredMachine> of(const record::Calibration& calibration);

  BlockSeconds table(const ModelShape& model, double tokens) const;
  BlockSeconds layer(const ModelShape& model, double tokens, int sequence_length,
                     spec::Checkpointing checkpointing) const;
  BlockSeconds head(const ModelShape& model, double tokens) const;
  double update(double parameters) const;  // of the rank's shard
  double add(double elements) const;       // of fp32 into fp32

  // kInvalid: no such group was measured. The curve holds on to this machine.
  base::Result<CollectiveCurve> collective(CollectiveKind kind, const Placement& placement) const;

  // CPUs that a rank has when all ranks compute, in shares of those that it asks for: 1 where nothing is shared.
  double cpu_share(int64_t nodes, int64_t ranks_per_node) const;
  // Highest rate of large matrix products of one rank, FLOP/s.
  double peak(const std::string& type) const;
  // How far the fits are from what they are fitted to, at most, as a share.
  double worst_fit() const { return worst_fit_; }
  const record::Calibration& calibration() const { return calibration_; }

 private:
  static constexpr size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;
  explicit MeasuredMachine(record::Calibration calibration) : calibration_(std::move(calibration)) {}
  template <typename TermsOf>
  Terms fit(const TermsOf& terms_of, record::Spread record::StepProbe::*seconds);
  static double sum(const Terms& coefficients, const Terms& terms);
  void fit_all();

  record::Calibration calibration_;
  Terms table_forward_{}, table_backward_{}, layer_forward_{}, layer_backward_{}, layer_selective_{},
      head_forward_{}, head_backward_{};
  double worst_fit_ = 0.0;
};

}  // namespace shardrun::launcher
