#include "runtime/spec/precompile_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace shardrun::spec {
namespace {

bool is_architecture(std::string_view text) {
  if (text.substr(0, 3) != "sm_" || text.size() < 5 || text.size() > 6) return false;
  return std::all_of(text.begin() + 3, text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

void read_precompile(const TomlValue& document, SpecReading& reading, const ProgramSpec& program,
                     PrecompileSpec& precompile) {
  SectionReader section(document, "precompile", reading);
  precompile.enabled = section.present();
  section.boolean("enabled", precompile.enabled);
  section.texts("command", precompile.command);
  section.text("cache", precompile.cache);
  section.integer("nodes", 1, 65536, precompile.nodes);
  section.integer("workers", 0, 4096, precompile.workers);
  section.word("architecture", "_", precompile.architecture);
  section.finish();
  if (section.has("command") && !program.trainer.empty()) {
    reading.fail(section.origin("command"), "the built-in trainer compiles its own kernels",
                 "remove the key, or run a program with [program] command = [\"…\"]");
  } else if (section.has("nodes") && !program.trainer.empty()) {
    reading.fail(section.origin("nodes"), "the built-in trainer compiles on the nodes it trains on",
                 "remove the key");
  } else if (section.has("architecture") && program.trainer.empty()) {
    reading.fail(section.origin("architecture"), "a command compiles for the architecture that it knows",
                 "remove the key");
  } else if (section.has("architecture") && !is_architecture(precompile.architecture)) {
    reading.fail(section.origin("architecture"),
                 fmt::format("\"{}\" is no architecture of NVIDIA's GPUs", precompile.architecture),
                 "write the compute capability as in \"sm_90\"");
  } else if (section.has("command") && (precompile.command.empty() || precompile.command.front().empty())) {
    reading.fail(section.origin("command"), "precompile.command names no program",
                 "write command = [\"program\", \"argument\"]");
  } else if (precompile.enabled && program.trainer.empty() && precompile.command.empty()) {
    reading.fail(section.origin(), "a command program is compiled by a command, and [precompile] has none",
                 "write command = [\"neuron_parallel_compile\", \"./train.sh\"], or enabled = false");
  }
}

}  // namespace shardrun::spec
