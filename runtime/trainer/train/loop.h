// The training loop: steps, validation, checkpoints and stopping, in the order in which they happen.
//
// Thread rule: thread-compatible; every rank runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

struct LoopOptions {
  int64_t steps = 100;                 // of the whole run, not of this attempt
  int64_t checkpoint_every_steps = 0;  // 0: only at the end and when stopped
  int64_t validate_every_steps = 0;    // 0: only at the end
  bool checkpoint_at_end = true;
  bool keep_best = false;  // whether a step whose validation loss is the lowest so far is saved, and kept
  int64_t stop_after = 0;  // the run ends when so many evaluations in a row were no better; 0: never
};

struct LoopOutcome {
  bool stopped = false;  // on request, before the last step, with a checkpoint
  std::optional<double> first_loss, final_loss, validation_loss;  // of this attempt
  std::vector<double> evaluation_losses;                          // likewise, the newest of each set
  std::vector<double> step_seconds;                               // likewise
  std::optional<checkpoint::BestLoss> best;                       // of the run, where the options go by it
  bool ended_early = false;                                       // by stop_after
  std::string checkpoint;  // the newest complete one of this attempt; may be empty
};

// Is told what happens, on the rank that wants to know. Calls come from the loop's thread.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void on_step(const StepReport& /*report*/, double /*seconds*/) {}
  virtual void on_validation(int64_t /*step*/, double /*loss*/) {}
  virtual void on_evaluation(int64_t /*step*/, size_t /*set*/, double /*loss*/) {}
  // The evaluation of that step was the best so far, or so many in a row have been no better that the run ends.
  virtual void on_best(const checkpoint::BestLoss& /*best*/) {}
  virtual void on_early_end(int64_t /*step*/, const checkpoint::BestLoss& /*best*/) {}
  virtual void on_checkpoint(int64_t /*step*/, const std::string& /*path*/, double /*stall_seconds*/) {}
  virtual void on_lost_checkpoint(int64_t /*step*/, const base::Error& /*error*/) {}
};

// Runs from the session's step to options.steps. `stop_requested` is asked once a step; when any rank says
// yes, all stop after that step with a checkpoint. Checkpoints are written beside the next steps; one that cannot be
// written is reported and the training goes on, except for the last one, of the end or of a stop, without which the
// work would be lost: its error is the loop's. What the options decide by validation losses is the same for a run that was stopped
// and resumed as for one that was not. Errors: that one and the session's.
Result<LoopOutcome> run_loop(Session& session, const checkpoint::Store& store, const LoopOptions& options,
                             const std::function<bool()>& stop_requested, LoopObserver& observer);

}  // namespace shardrun::train
