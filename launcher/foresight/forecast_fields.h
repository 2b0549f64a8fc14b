// The keys of predictions in what --json prints (docs/formats.md, "Predictions").
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>

#include "launcher/foresight/forecast.h"
#include "runtime/base/fields.h"
#include "runtime/spec/strategy.h"

namespace shardrun::launcher {

void fields(auto& visit, const Layout& layout) {
  visit("strategy", spec::rules_of(layout.strategy).name);
  visit("shard_degree", layout.shard_degree);
  visit("tensor_parallel", layout.tensor_parallel);
  visit("micro_batch", layout.micro_batch);
  visit("gradient_accumulation", layout.accumulation);
  visit("activation_checkpointing", name_of(layout.checkpointing));
  visit("activation_offload", layout.activation_offload);
  visit("optimizer_offload", layout.optimizer_offload);
  const Given& given = layout.given;
  if (given.pipeline > 1) {
    visit("pipeline", given.pipeline);
    visit("pipeline_chunks", given.pipeline_chunks);
    visit("zero_bubble", given.zero_bubble);
  }
  if (given.context_parallel > 1) {
    visit("context_parallel", given.context_parallel);
    visit("gathers_context", given.gathers_context);
  }
  if (given.experts > 1) {
    visit("experts", given.experts);
    visit("active_experts", given.active_experts);
    visit("expert_parallel", given.expert_parallel);
  }
}

void fields(auto& visit, const StepForecast& step) {
  constexpr base::Digits kDigits = base::significant(6), kWhole = base::decimals(0);
  const Phases& phases = step.phases;
  const Volumes& volumes = step.volumes;
  visit("step_seconds", step.seconds, kDigits);
  visit("tokens_per_step", step.tokens, kWhole);
  visit("tokens_per_second", step.tokens_per_second(), kDigits);
  visit("model_tflops_per_accelerator", step.model_flops / 1e12, kDigits);
  visit.object("seconds", [&](auto& seconds) {
    seconds("kernels", phases.compute, kDigits);
    seconds("exposed", phases.exposed, kDigits);
    if (phases.bubble > 0.0) seconds("bubble", phases.bubble, kDigits);
    seconds("optimizer", phases.optimizer, kDigits);
    seconds("host", phases.host, kDigits);
    seconds("straggle", phases.straggle, kDigits);
    seconds("gather", phases.gather, kDigits);
    seconds("reduce", phases.reduce, kDigits);
    seconds("replica", phases.replica, kDigits);
    seconds("tensor", phases.tensor, kDigits);
    seconds("offload", phases.offload, kDigits);
  });
  visit.object("bytes_per_rank", [&](auto& bytes) {
    bytes("gather", volumes.gather, kWhole);
    bytes("reduce", volumes.reduce, kWhole);
    bytes("replica", volumes.replica, kWhole);
    bytes("tensor", volumes.tensor, kWhole);
    bytes("offload", volumes.offload, kWhole);
  });
}

// The ends of an interval of a value that grows with the rate, or falls with it.
inline std::vector<double> interval_of(double value, double deviation, bool falls = false) {
  const Interval ends = Estimate{1.0, deviation}.interval();
  return falls ? std::vector<double>{value / ends.high, value / ends.low}
               : std::vector<double>{value * ends.low, value * ends.high};
}

void interval_fields(auto& visit, const StepForecast& step, const Estimate& estimate, auto&& more) {
  visit.object("interval", [&](auto& interval) {
    constexpr base::Digits kDigits = base::significant(6);
    interval("share", 0.8, base::significant(1));
    interval("step_seconds", interval_of(step.seconds, estimate.deviation, true), kDigits);
    interval("tokens_per_second", interval_of(step.tokens_per_second(), estimate.deviation), kDigits);
    interval("model_tflops_per_accelerator", interval_of(step.model_flops / 1e12, estimate.deviation),
             kDigits);
    more(interval);
  });
}

void fields(auto& visit, const Written& written) {
  visit("fits", written.sure.has_value());
  visit("active_bytes", written.active_bytes, base::decimals(0));
  visit("reserved_bytes", written.reserved_bytes, base::decimals(0));
  visit("reserved_between", std::vector{written.reserved_between.low, written.reserved_between.high},
        base::decimals(0));
  visit("usable_bytes", written.usable_bytes, base::decimals(0));
  visit("layout", written.layout);
  if (!written.sure) {
    visit("would_fit", written.mends);
    return;
  }
  fields(visit, written.sure->step);
  interval_fields(visit, written.sure->step, written.sure->estimate, [](auto&) {});
}

void fields(auto& visit, const Saving& saving) {
  visit("every_steps", saving.every_steps);
  visit("held_up_seconds", saving.held_up_seconds, base::significant(4));
  visit("hours_between_failures", saving.hours_between_failures, base::significant(4));
  visit("lost_share", saving.lost_share, base::significant(4));
}

void fields(auto& visit, const ForecastLine& line) {
  visit("machine", line.machine);
  visit("nodes", line.nodes);
  visit("accelerators", line.accelerators);
  visit("global_batch", line.global_batch);
  visit("combinations", line.combinations);
  if (line.best) {
    visit("best", line.best->layout);
    fields(visit, line.step);
    const Interval held = line.held_between();
    visit("efficiency", line.efficiency, base::significant(6));
    interval_fields(visit, line.step, line.estimate, [&](auto& interval) {
      constexpr base::Digits kDigits = base::significant(6);
      interval("efficiency", interval_of(line.efficiency, line.efficiency_deviation), kDigits);
      interval("held_bytes", std::vector{held.low, held.high}, base::decimals(0));
      if (line.hours) interval("hours", interval_of(*line.hours, line.estimate.deviation, true), kDigits);
      if (line.dollars)
        interval("dollars", interval_of(*line.dollars, line.estimate.deviation, true), kDigits);
    });
    visit("estimated_bytes", line.best->bytes, base::decimals(0));
    visit("checkpoint", line.saving);
  }
  visit.where_known("planned_bytes", line.planned_bytes);
  visit.where_known("hours", line.hours, base::significant(6));
  visit.where_known("dollars", line.dollars, base::significant(6));
  visit("reasons", line.reasons);
  if (!line.beyond.empty()) visit("unseen", line.beyond);
}

void fields(auto& visit, const ForecastReport& report) {
  visit("kind", "prediction");
  visit("software", report.software);
  visit("scaling", report.weak ? "weak" : "strong");
  if (report.fp8) visit("fp8", true);
  if (report.tokens > 0.0) visit("tokens", report.tokens, base::significant(6));
  if (report.measured > 0) visit("measured", report.measured);
  visit.where_known("written", report.written);
  visit("lines", report.lines);
}

}  // namespace shardrun::launcher
