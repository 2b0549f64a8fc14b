#include "runtime/spec/evaluation_spec.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {
namespace {

constexpr std::string_view kSetLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
constexpr const char *kKeepBest = "keep_best", *kStopAfter = "stop_after";

}  // namespace

void read_evaluation(const TomlValue& document, SpecReading& reading, EvaluationSpec& evaluation) {
  constexpr int64_t kMostEvaluations = 1'000'000;
  SectionReader section(document, "evaluation", reading);
  section.boolean(kKeepBest, evaluation.keep_best);
  section.integer(kStopAfter, 0, kMostEvaluations, evaluation.stop_after);
  for (const TomlMember& member : section.members()) {
    if (member.key == kKeepBest || member.key == kStopAfter) continue;
    EvaluationSet set{member.key, {}};
    const bool plain = set.name.size() <= 64 && set.name.find_first_not_of(kSetLetters) == std::string::npos;
    if (!plain) {
      reading.fail(member.value.origin, fmt::format("\"{}\" cannot name a data set", printable(set.name)),
                   "use at most 64 letters, digits and ._-");
      return;
    }
    section.texts(set.name, set.files);
    if (set.files.empty() && !reading.error)
      reading.fail(member.value.origin, fmt::format("evaluation.{} has no files", set.name),
                   fmt::format("write {} = [\"path of a text file\"]", set.name));
    evaluation.sets.push_back(std::move(set));
  }
  section.finish();
}

void check_evaluation(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (reading.error || !spec.evaluation.watches_best()) return;
  const SectionReader section(document, "evaluation", reading);
  const char* key = spec.evaluation.keep_best ? kKeepBest : kStopAfter;
  if (spec.data.validation.empty()) {
    reading.fail(section.origin(key),
                 fmt::format("{} goes by the validation loss, and the job has none", key),
                 "write [data] validation = [\"path of a text file\"]");
  } else if (spec.logging.validate_every_steps == 0) {
    reading.fail(section.origin(key),
                 fmt::format("{} compares validation losses, and there is one alone, at the end", key),
                 "write [logging] validate_every_steps");
  }
}

}  // namespace shardrun::spec
