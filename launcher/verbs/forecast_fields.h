// The keys of predictions in what --json prints (docs/formats.md, "Predictions").
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>

#include "launcher/verbs/forecast.h"
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

void fields(auto& visit, const ForecastLine& line) {
  visit("machine", line.machine);
  visit("nodes", line.nodes);
  visit("accelerators", line.accelerators);
  visit("global_batch", line.global_batch);
  visit("combinations", line.combinations);
  if (line.best) {
    visit("best", line.best->layout);
    fields(visit, line.step);
    visit("efficiency", line.efficiency, base::significant(6));
    visit("estimated_bytes", line.best->bytes, base::decimals(0));
  }
  visit.where_known("planned_bytes", line.planned_bytes);
  visit.where_known("hours", line.hours, base::significant(6));
  visit.where_known("dollars", line.dollars, base::significant(6));
  visit("reasons", line.reasons);
}

void fields(auto& visit, const ForecastReport& report) {
  visit("kind", "prediction");
  visit("software", report.software);
  visit("scaling", report.weak ? "weak" : "strong");
  if (report.fp8) visit("fp8", true);
  if (report.tokens > 0.0) visit("tokens", report.tokens, base::significant(6));
  visit.where_known("written", report.written);
  visit("lines", report.lines);
}

}  // namespace shardrun::launcher
