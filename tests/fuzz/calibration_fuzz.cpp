// Runs libFuzzer over the file that a cluster's measurements are kept in and the words that name software, and over what is
// predicted from them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "launcher/forecast/replay.h"
#include "launcher/forecast/search.h"
#include "launcher/foresight/software.h"
#include "runtime/record/calibration.h"

namespace {

using namespace shardrun;

// Requires that a calibration that is accepted can be written, read again and predicted from.
void use(const record::Calibration& calibration) {
  if (!record::parse_calibration(record::to_toml(calibration), "written.toml")) std::abort();
  const auto machine = launcher::MeasuredMachine::of(calibration);
  if (!machine) return;
  launcher::ReplayQuestion question;
  question.model.layers = 2;
  question.model.hidden = question.model.kv_width = 64;
  question.model.ffn = 128;
  question.model.vocab = 256;
  question.ranks_per_node = 2;
  question.layout.nodes = 2;
  question.layout.shard_degree = 4;
  question.layout.micro_batch = 1;
  question.layout.sequence_length = 32;
  const auto step = launcher::replay_step(*machine, question);
  if (step && !(step->seconds >= 0.0)) std::abort();
}

// Requires that layouts of software that is accepted have the degrees that it was given.
void use(const launcher::Software& software) {
  launcher::Question question;
  question.machine.memory_bytes = 80e9;
  question.model = {.layers = 8, .hidden = 1024, .kv_width = 256, .ffn = 4096, .vocab = 32000};
  question.constants = launcher::fitted_constants();
  question.nodes = 4;
  question.global_batch = 64;
  question.traits = software.traits;
  question.given = software.given;
  question.tensor_parallel = software.tensor_parallel;
  for (const launcher::Candidate& one : launcher::search(question).candidates) {
    if (!(one.seconds > 0.0) || !(one.bytes > 0.0)) std::abort();
    if (one.layout.given.pipeline != software.given.pipeline) std::abort();
    if (software.tensor_parallel > 0 && one.layout.tensor_parallel != software.tensor_parallel) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto calibration = record::parse_calibration(text, "fuzz.toml")) use(*calibration);
  for (const std::string& said : {text, "megatron," + text})
    if (const auto software = launcher::parse_software(said)) use(*software);
  return 0;
}
