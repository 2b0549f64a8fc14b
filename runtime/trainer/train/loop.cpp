#include "runtime/trainer/train/loop.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/train/best_loss.h"

namespace shardrun::train {
namespace {

using Clock = std::chrono::steady_clock;

bool is_due(int64_t step, int64_t every_steps) {
  return every_steps > 0 && step % every_steps == 0;
}

bool goes_by_best(const LoopOptions& options) {
  return options.keep_best || options.stop_after > 0;
}

bool ends_early(const Session& session, const LoopOptions& options) {
  const auto& best = session.best();
  return options.stop_after > 0 && best && best->evaluations_since >= options.stop_after;
}

bool is_evaluated(const Session& session) {
  return session.best() && session.best()->evaluated_step == session.steps_done();
}

// Returns whether the loss is the best so far. A step counts once, however often a run that ends there is resumed.
bool note_evaluation(Session& session, double loss, const LoopOptions& options, LoopObserver& observer) {
  if (!goes_by_best(options) || is_evaluated(session)) return false;
  auto best = after_evaluation(session.best(), session.steps_done(), loss);
  if (best) best->kept = options.keep_best;
  session.keep(best);
  const bool is_best = best && best->step == session.steps_done();
  if (is_best) observer.on_best(*best);
  return is_best;
}

// Returns whether the model has never been better.
Result<bool> validate(Session& session, const LoopOptions& options, LoopOutcome& outcome,
                      LoopObserver& observer) {
  bool is_best = false;
  ASSIGN_OR_RETURN(auto loss, session.validate());
  outcome.validation_loss = loss;
  if (loss) observer.on_validation(session.steps_done(), *loss);
  ASSIGN_OR_RETURN(outcome.evaluation_losses, session.evaluate());
  for (size_t set = 0; set < outcome.evaluation_losses.size(); ++set)
    observer.on_evaluation(session.steps_done(), set, outcome.evaluation_losses[set]);
  if (loss) is_best = note_evaluation(session, *loss, options, observer);
  return is_best;
}

// A run that is asked to stop leaves the evaluation of its last step out: that is made up for here, so that its count goes on as if
// it had never stopped.
Result<void> begin(Session& session, const LoopOptions& options, LoopOutcome& outcome,
                   LoopObserver& observer) {
  auto best = session.best();
  if (best) best->kept = options.keep_best;
  session.keep(goes_by_best(options) ? best : std::nullopt);
  const int64_t step = session.steps_done();
  const bool left_out = step > 0 && step < options.steps && is_due(step, options.validate_every_steps);
  if (goes_by_best(options) && left_out && !is_evaluated(session))
    RETURN_IF_ERROR(validate(session, options, outcome, observer));
  return {};
}

// Is told once, when no step follows.
void end(const Session& session, const LoopOptions& options, LoopOutcome& outcome, LoopObserver& observer) {
  outcome.best = session.best();
  outcome.ended_early = ends_early(session, options) && session.steps_done() < options.steps;
  if (outcome.ended_early) observer.on_early_end(session.steps_done(), *outcome.best);
}

// Tells of the saves that ended; returns the error of the last one.
std::optional<base::Error> report_saves(Session& session, LoopOutcome& outcome, LoopObserver& observer) {
  std::optional<base::Error> error;
  for (const SaveOutcome& save : session.take_saves()) {
    error = save.error;
    if (save.error) {
      observer.on_lost_checkpoint(save.step, *save.error);
    } else {
      outcome.checkpoint = save.path;
      observer.on_checkpoint(save.step, save.path, save.stall_seconds);
    }
  }
  return error;
}

// Saves the state as it is, if `saves`, and waits until it and the saves before it are written.
Result<void> save_and_wait(Session& session, const checkpoint::Store& store, bool saves, LoopOutcome& outcome,
                           LoopObserver& observer) {
  if (saves) RETURN_IF_ERROR(session.start_save(store));
  RETURN_IF_ERROR(session.finish_save());
  auto error = report_saves(session, outcome, observer);
  if (saves && error) return std::move(*error);
  return {};
}

// A step whose loss is a spike or no number has changed nothing, nor has data that cannot be validated with: what was there before it
// is kept for whoever looks into it, or goes on from there with other settings.
base::Error save_before_end(Session& session, const checkpoint::Store& store, base::Error error,
                            LoopOutcome& outcome, LoopObserver& observer) {
  if (session.steps_done() == 0 || !session.has_good_state()) return error;
  const auto saved = save_and_wait(session, store, /*saves=*/true, outcome, observer);
  const std::string words =
      saved ? fmt::format("the state before it is in {}", outcome.checkpoint)
            : fmt::format("the state before it could not be saved: {}", saved.error().to_string());
  return base::Error(error.code(), error.to_string() + "; " + words);
}

}  // namespace

Result<LoopOutcome> run_loop(Session& session, const checkpoint::Store& store, const LoopOptions& options,
                             const std::function<bool()>& stop_requested, LoopObserver& observer) {
  LoopOutcome outcome;
  RETURN_IF_ERROR(begin(session, options, outcome, observer));
  while (session.steps_done() < options.steps && !ends_early(session, options)) {
    const auto started = Clock::now();
    auto stepped = session.step(stop_requested());
    if (!stepped) return save_before_end(session, store, std::move(stepped).error(), outcome, observer);
    const StepReport& report = *stepped;
    outcome.step_seconds.push_back(std::chrono::duration<double>(Clock::now() - started).count());
    if (!outcome.first_loss) outcome.first_loss = report.loss;
    outcome.final_loss = report.loss;
    observer.on_step(report, outcome.step_seconds.back());

    const bool all_done = report.step == options.steps;
    outcome.stopped = report.stop_requested && !all_done;
    bool keeps = false;
    if (all_done || (!outcome.stopped && is_due(report.step, options.validate_every_steps))) {
      const auto is_best = validate(session, options, outcome, observer);
      if (!is_best) return save_before_end(session, store, is_best.error(), outcome, observer);
      keeps = *is_best && options.keep_best;
    }
    if (all_done || outcome.stopped || ends_early(session, options)) {
      const bool saves = outcome.stopped || options.checkpoint_at_end || keeps;
      RETURN_IF_ERROR(save_and_wait(session, store, saves, outcome, observer));
    } else if (keeps || is_due(report.step, options.checkpoint_every_steps)) {
      RETURN_IF_ERROR(session.start_save(store));
    }
    report_saves(session, outcome, observer);
    if (outcome.stopped) return outcome;
  }
  // A checkpoint of the last step was resumed: there was nothing to train, but its loss is still the answer.
  if (outcome.step_seconds.empty()) RETURN_IF_ERROR(validate(session, options, outcome, observer));
  end(session, options, outcome, observer);
  return outcome;
}

}  // namespace shardrun::train
