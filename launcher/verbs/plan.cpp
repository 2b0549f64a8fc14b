#include <fmt/format.h>

#include "launcher/plan/model_size.h"
#include "launcher/verbs/verbs.h"
#include "launcher/view/progress.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {

int plan(const SpecOptions& options, const CommonOptions& common) {
  auto loaded = load_spec(options.path, options.overrides);
  if (!loaded) return fail(loaded.error(), common);
  const contract::JobSpec& spec = loaded->spec;
  PlanContext context;
  context.scheduler = spec.cluster.scheduler == contract::SchedulerKind::kSlurm ? "slurm" : "local";
  context.working_directory = current_directory();
  context.overrides = options.overrides;
  auto solved = solve_launch_plan(spec, context);
  if (!solved) return fail(solved.error(), common);
  const contract::BatchPlan& batch = solved->batch;
  const bool trainer = spec.program.command.empty();
  const ModelSize size = trainer ? model_size(spec, batch) : ModelSize{};
  if (common.json) {
    fmt::print(
        "{{\"name\": \"{}\", \"nodes\": {}, \"ranks_per_node\": {}, \"world_size\": {}, \"batch\": "
        "{{\"global_batch\": {}, \"micro_batch\": {}, \"gradient_accumulation\": {}, \"data_parallel\": {}}}",
        spec.name, solved->nodes, solved->ranks_per_node, solved->world_size(), batch.global_batch,
        batch.micro_batch, batch.gradient_accumulation, batch.data_parallel);
    if (trainer) {
      fmt::print(
          ", \"parameters\": {}, \"tokens_per_step\": {}, \"bytes_per_rank\": {{\"master\": {}, \"moments\": "
          "{}, "
          "\"gradients\": {}, \"gathered\": {}}}",
          size.parameters, batch.global_batch * spec.data.sequence_length, size.master_bytes,
          size.moment_bytes, size.gradient_bytes, size.gathered_bytes);
    }
    fmt::print("}}\n");
    return contract::kExitDone;
  }
  fmt::print("job          {}\n", spec.name);
  fmt::print("ranks        {} nodes × {} = {}, {} CPUs each\n", solved->nodes, solved->ranks_per_node,
             solved->world_size(), solved->cpus_per_rank);
  fmt::print("batch        {} sequences = micro-batch {} × accumulation {} × {} ranks\n", batch.global_batch,
             batch.micro_batch, batch.gradient_accumulation, batch.data_parallel);
  if (!trainer) return contract::kExitDone;
  fmt::print("a step       {} tokens\n", with_thousands(batch.global_batch * spec.data.sequence_length));
  fmt::print("model        {} parameters in {} blocks\n", with_thousands(size.parameters), size.blocks);
  fmt::print(
      "a rank holds {} of masters, {} of moments, {} of gradients,\n             {} of gathered blocks and "
      "their "
      "gradients; activations come on top\n",
      bytes_text(size.master_bytes), bytes_text(size.moment_bytes), bytes_text(size.gradient_bytes),
      bytes_text(size.gathered_bytes));
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
