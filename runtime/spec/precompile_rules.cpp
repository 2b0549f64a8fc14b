#include "runtime/spec/precompile_rules.h"

#include <fmt/format.h>

namespace shardrun::spec {

void read_precompile(const TomlValue& document, SpecReading& reading, JobSpec& spec) {
  PrecompileSpec& precompile = spec.precompile;
  SectionReader section(document, "precompile", reading);
  if (section.present() && !spec.program.trainer.empty()) {
    return reading.fail(section.origin(), "the trainer's kernels come compiled",
                        "remove the section: [precompile] is for command programs");
  }
  precompile.enabled = section.present();
  section.boolean("enabled", precompile.enabled);
  section.texts("command", precompile.command);
  section.text("cache", precompile.cache);
  section.integer("nodes", 1, 65536, precompile.nodes);
  section.integer("workers", 0, 4096, precompile.workers);
  section.finish();
  if (section.has("command") && (precompile.command.empty() || precompile.command.front().empty())) {
    reading.fail(section.origin("command"), "precompile.command names no program",
                 "write command = [\"program\", \"argument\"]");
  } else if (precompile.enabled && precompile.command.empty()) {
    reading.fail(section.origin(), "a command program is compiled by a command, and [precompile] has none",
                 "write command = [\"neuron_parallel_compile\", \"./train.sh\"], or enabled = false");
  }
  const bool has_fewer = precompile.nodes > 0 && precompile.nodes < spec.resources.nodes;
  if (precompile.enabled && has_fewer && !(spec.slurm.nodelist.empty() && spec.slurm.segment == 0)) {
    const char* const key = spec.slurm.nodelist.empty() ? "segment" : "nodelist";
    reading.fail(section.origin("nodes"),
                 fmt::format("the compile job has fewer nodes than [slurm] {} is for", key),
                 fmt::format("remove nodes, or {}", key));
  }
}

}  // namespace shardrun::spec
