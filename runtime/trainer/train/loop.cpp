#include "runtime/trainer/train/loop.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace shardrun::train {
namespace {

using Clock = std::chrono::steady_clock;

bool is_due(int64_t step, int64_t every_steps) {
  return every_steps > 0 && step % every_steps == 0;
}

Result<void> validate(Session& session, LoopOutcome& outcome, LoopObserver& observer) {
  ASSIGN_OR_RETURN(auto loss, session.validate());
  outcome.validation_loss = loss;
  if (loss) observer.on_validation(session.steps_done(), *loss);
  ASSIGN_OR_RETURN(outcome.evaluation_losses, session.evaluate());
  for (size_t set = 0; set < outcome.evaluation_losses.size(); ++set)
    observer.on_evaluation(session.steps_done(), set, outcome.evaluation_losses[set]);
  return {};
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
  observer.on_wait_for_save();
  if (saves) RETURN_IF_ERROR(session.start_save(store));
  RETURN_IF_ERROR(session.finish_save());
  auto error = report_saves(session, outcome, observer);
  if (saves && error) return std::move(*error);
  return {};
}

// A step whose loss is a spike or no number has changed nothing: what was there before it is kept for whoever looks into it, or goes on
// from there with other settings.
base::Error save_before_end(Session& session, const checkpoint::Store& store, base::Error error,
                            LoopOutcome& outcome, LoopObserver& observer) {
  if (session.steps_done() == 0) return error;
  const auto saved = save_and_wait(session, store, /*saves=*/true, outcome, observer);
  const std::string words =
      saved ? fmt::format("the state before it is in {}", outcome.checkpoint)
            : fmt::format("the state before it could not be saved: {}", saved.error().to_string());
  return base::Error(error.code(), error.message() + "; " + words);
}

}  // namespace

Result<LoopOutcome> run_loop(Session& session, const checkpoint::Store& store, const LoopOptions& options,
                             const std::function<bool()>& stop_requested, LoopObserver& observer) {
  LoopOutcome outcome;
  while (session.steps_done() < options.steps) {
    const auto started = Clock::now();
    auto stepped = session.step(stop_requested());
    if (!stepped && session.has_good_state())
      return save_before_end(session, store, std::move(stepped).error(), outcome, observer);
    RETURN_IF_ERROR(stepped);
    const StepReport& report = *stepped;
    outcome.step_seconds.push_back(std::chrono::duration<double>(Clock::now() - started).count());
    if (!outcome.first_loss) outcome.first_loss = report.loss;
    outcome.final_loss = report.loss;
    observer.on_step(report, outcome.step_seconds.back());

    const bool last = report.step == options.steps;
    outcome.stopped = report.stop_requested && !last;
    if (last || (!outcome.stopped && is_due(report.step, options.validate_every_steps))) {
      RETURN_IF_ERROR(validate(session, outcome, observer));
    }
    if (last || outcome.stopped) {
      const bool saves = outcome.stopped || options.checkpoint_at_end;
      RETURN_IF_ERROR(save_and_wait(session, store, saves, outcome, observer));
    } else if (is_due(report.step, options.checkpoint_every_steps)) {
      RETURN_IF_ERROR(session.start_save(store));
    }
    report_saves(session, outcome, observer);
    if (outcome.stopped) return outcome;
  }
  // A checkpoint of the last step was resumed: there was nothing to train, but its loss is still the answer.
  if (outcome.step_seconds.empty()) RETURN_IF_ERROR(validate(session, outcome, observer));
  return outcome;
}

}  // namespace shardrun::train
