// Runs libFuzzer over the file that a cluster's measurements are kept in, and over what is predicted from it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "launcher/forecast/replay.h"
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto calibration = record::parse_calibration(text, "fuzz.toml")) use(*calibration);
  return 0;
}
