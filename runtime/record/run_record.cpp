#include "runtime/record/run_record.h"

#include <ctime>

#include "runtime/record/json_reader.h"
#include "runtime/record/model_plan_json.h"
#include "runtime/record/utilization_json.h"

namespace shardrun::record {
namespace {

using nlohmann::json;

template <typename T>
json optional_json(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json metrics_json(const TrainingMetrics& metrics) {
  return {{"steps", metrics.steps},
          {"first_loss", optional_json(metrics.first_loss)},
          {"final_loss", optional_json(metrics.final_loss)},
          {"validation_loss", optional_json(metrics.validation_loss)},
          {"unigram_entropy", optional_json(metrics.unigram_entropy)},
          {"tokens_per_second", metrics.tokens_per_second},
          {"step_seconds", {{"p50", metrics.step_seconds_p50}, {"p99", metrics.step_seconds_p99}}},
          {"model_flops_utilization",
           metrics.utilization.empty() ? json() : json(metrics.utilization.front().causal)},
          {"utilization", utilizations_json(metrics.utilization)},
          {"flops_per_token", metrics.flops_per_token.causal},
          {"full_flops_per_token", metrics.flops_per_token.full},
          {"checkpoint", metrics.checkpoint},
          {"first_barrier_seconds", metrics.first_barrier_seconds},
          {"versions", metrics.versions}};
}

Result<TrainingMetrics> read_metrics(const json& object) {
  JsonReader reader(object, "training metrics");
  TrainingMetrics metrics;
  reader.read("steps", metrics.steps);
  reader.read_optional("first_loss", metrics.first_loss);
  reader.read_optional("final_loss", metrics.final_loss);
  reader.read_optional("validation_loss", metrics.validation_loss);
  reader.read_optional("unigram_entropy", metrics.unigram_entropy);
  reader.read("tokens_per_second", metrics.tokens_per_second);
  if (const json* seconds = reader.member("step_seconds")) {
    JsonReader quantiles(*seconds, "step_seconds");
    quantiles.read("p50", metrics.step_seconds_p50);
    quantiles.read("p99", metrics.step_seconds_p99);
    RETURN_IF_ERROR(quantiles.finish());
  }
  std::optional<double> causal, full;  // of later versions
  reader.read_optional("flops_per_token", causal);
  reader.read_optional("full_flops_per_token", full);
  metrics.flops_per_token = {causal.value_or(0.0), full.value_or(0.0)};
  metrics.utilization = read_utilizations(reader.member("utilization"));
  reader.read("checkpoint", metrics.checkpoint);
  reader.read("first_barrier_seconds", metrics.first_barrier_seconds);
  if (const json* planned = reader.member("planned_memory_bytes")) {
    auto memory = read_memory(*planned);
    if (!memory) return std::move(memory).error();
    metrics.planned = *memory;
  }
  if (const json* versions = reader.member("versions"); versions != nullptr && versions->is_object()) {
    for (const auto& [library, version] : versions->items()) {
      if (version.is_string()) metrics.versions[library] = version.get<std::string>();
    }
  }
  RETURN_IF_ERROR(reader.finish());
  return metrics;
}

std::vector<std::string> texts_of(const JsonReader& reader, const char* key) {
  std::vector<std::string> texts;
  const json* list = reader.member(key);
  if (list == nullptr || !list->is_array()) return texts;
  for (const json& item : *list) {
    if (item.is_string()) texts.push_back(item.get<std::string>());
  }
  return texts;
}

json prediction_json(const std::optional<Prediction>& prediction) {
  if (!prediction) return nullptr;
  const plan::PeakRate first = prediction->peaks.empty() ? plan::PeakRate() : prediction->peaks.front();
  return {{"step_seconds", optional_json(prediction->step_seconds)},
          {"tokens_per_second", optional_json(prediction->tokens_per_second)},
          {"memory_bytes", optional_json(prediction->memory_bytes)},
          {"basis", prediction->basis},
          {"unknown_because", prediction->unknown_because},
          {"peaks", peaks_json(prediction->peaks)},
          {"peak_flops", first.flops},
          {"peak_source", first.source}};
}

Result<Prediction> read_prediction(const json& object) {
  JsonReader reader(object, "predicted");
  Prediction prediction;
  reader.read_optional("step_seconds", prediction.step_seconds);
  reader.read_optional("tokens_per_second", prediction.tokens_per_second);
  reader.read_optional("memory_bytes", prediction.memory_bytes);
  reader.read("basis", prediction.basis);
  reader.read("unknown_because", prediction.unknown_because);
  prediction.peaks = read_peaks(reader.member("peaks"));
  RETURN_IF_ERROR(reader.finish());
  return prediction;
}

json preflight_json(const std::optional<PreflightNote>& note) {
  if (!note) return nullptr;
  json excluded = json::array();
  for (const ExcludedNode& node : note->excluded)
    excluded.push_back({{"node", node.node}, {"kind", node.kind}, {"reason", node.reason}});
  return {{"seconds", note->seconds},
          {"bytes_per_second", optional_json(note->bytes_per_second)},
          {"usual_bytes_per_second", optional_json(note->usual_bytes_per_second)},
          {"excluded", excluded},
          {"warnings", note->warnings}};
}

Result<PreflightNote> read_preflight(const json& object) {
  JsonReader reader(object, "preflight");
  PreflightNote note;
  reader.read("seconds", note.seconds);
  reader.read_optional("bytes_per_second", note.bytes_per_second);
  reader.read_optional("usual_bytes_per_second", note.usual_bytes_per_second);
  RETURN_IF_ERROR(reader.finish());
  if (const json* list = reader.member("excluded"); list != nullptr && list->is_array()) {
    for (const json& item : *list) {
      JsonReader members(item, "excluded");
      ExcludedNode& node = note.excluded.emplace_back();
      members.read("node", node.node);
      members.read("kind", node.kind);
      members.read("reason", node.reason);
      RETURN_IF_ERROR(members.finish());
    }
  }
  note.warnings = texts_of(reader, "warnings");
  return note;
}

json batch_json(const plan::BatchPlan& batch) {
  return {{"global_batch", batch.global_batch},
          {"micro_batch", batch.micro_batch},
          {"gradient_accumulation", batch.gradient_accumulation},
          {"data_parallel", batch.data_parallel}};
}

Result<plan::BatchPlan> read_batch(const json& object) {
  JsonReader reader(object, "batch");
  plan::BatchPlan batch;
  reader.read("global_batch", batch.global_batch);
  reader.read("micro_batch", batch.micro_batch);
  reader.read("gradient_accumulation", batch.gradient_accumulation);
  reader.read("data_parallel", batch.data_parallel);
  RETURN_IF_ERROR(reader.finish());
  return batch;
}

json attempt_json(const Attempt& attempt) {
  json cause = nullptr;
  if (attempt.first_cause) {
    cause = {{"kind", attempt.first_cause->kind},
             {"node", attempt.first_cause->node},
             {"global_rank", optional_json(attempt.first_cause->global_rank)},
             {"signal", optional_json(attempt.first_cause->signal)},
             {"exit_code", optional_json(attempt.first_cause->exit_code)}};
  }
  json stragglers = json::array();
  for (const StragglerNote& note : attempt.stragglers) {
    stragglers.push_back({{"global_rank", note.global_rank},
                          {"node", note.node},
                          {"busy_seconds", note.busy_seconds},
                          {"median_seconds", note.median_seconds}});
  }
  return {{"attempt", attempt.number},
          {"started", attempt.started},
          {"ended", optional_json(attempt.ended)},
          {"first_cause", cause},
          {"verdict", attempt.verdict},
          {"nodes", attempt.nodes},
          {"world_size", attempt.world_size},
          {"batch", batch_json(attempt.batch)},
          {"also_lost", attempt.also_lost},
          {"detection_seconds", optional_json(attempt.detection_seconds)},
          {"checkpoint_step", optional_json(attempt.checkpoint_step)},
          {"stragglers", stragglers},
          {"preflight", preflight_json(attempt.preflight)}};
}

Result<StragglerNote> read_straggler(const json& object) {
  JsonReader reader(object, "straggler");
  StragglerNote note;
  reader.read("global_rank", note.global_rank);
  reader.read("node", note.node);
  reader.read("busy_seconds", note.busy_seconds);
  reader.read("median_seconds", note.median_seconds);
  RETURN_IF_ERROR(reader.finish());
  return note;
}

// What earlier versions did not write.
Result<void> read_later_members(JsonReader& reader, Attempt& attempt) {
  std::optional<std::string> verdict;
  std::optional<int> number;
  reader.read_optional("attempt", number);
  reader.read_optional("verdict", verdict);
  reader.read_optional("detection_seconds", attempt.detection_seconds);
  reader.read_optional("checkpoint_step", attempt.checkpoint_step);
  attempt.number = number.value_or(0);
  attempt.verdict = verdict.value_or("");
  attempt.nodes = texts_of(reader, "nodes");
  attempt.also_lost = texts_of(reader, "also_lost");
  std::optional<int> world_size;
  reader.read_optional("world_size", world_size);
  attempt.world_size = world_size.value_or(0);
  if (attempt.world_size < 0 || attempt.world_size > LaunchPlan::kLargestWorld) {
    return base::Error(base::Code::kCorrupt,
                       fmt::format("record.json: {} is no number of ranks", attempt.world_size));
  }
  if (const json* batch = reader.member("batch"); batch != nullptr && batch->is_object()) {
    auto read = read_batch(*batch);
    if (!read) return std::move(read).error();
    attempt.batch = *read;
  }
  if (const json* stragglers = reader.member("stragglers"); stragglers != nullptr && stragglers->is_array()) {
    for (const auto& item : *stragglers) {
      auto note = read_straggler(item);
      if (!note) return std::move(note).error();
      attempt.stragglers.push_back(std::move(note).value());
    }
  }
  if (const json* preflight = reader.member("preflight"); preflight != nullptr && preflight->is_object()) {
    auto note = read_preflight(*preflight);
    if (!note) return std::move(note).error();
    attempt.preflight = std::move(note).value();
  }
  return reader.finish();
}

Result<Attempt> read_attempt(const json& object) {
  JsonReader reader(object, "attempt");
  Attempt attempt;
  reader.read("started", attempt.started);
  reader.read_optional("ended", attempt.ended);
  RETURN_IF_ERROR(read_later_members(reader, attempt));
  if (const json* cause = reader.member("first_cause"); cause != nullptr && !cause->is_null()) {
    JsonReader details(*cause, "first_cause");
    FirstCause first;
    details.read("kind", first.kind);
    details.read("node", first.node);
    details.read_optional("global_rank", first.global_rank);
    details.read_optional("signal", first.signal);
    details.read_optional("exit_code", first.exit_code);
    RETURN_IF_ERROR(details.finish());
    attempt.first_cause = first;
  }
  return attempt;
}

constexpr RunStatus kStatuses[] = {RunStatus::kRunning, RunStatus::kCompleted, RunStatus::kFailed,
                                   RunStatus::kRefused, RunStatus::kPreempted};

json precompile_json(const std::optional<PrecompileNote>& note) {
  if (!note) return nullptr;
  return {{"run", note->run}, {"seconds", note->seconds ? json(*note->seconds) : json(nullptr)}};
}

// The lists and nested objects of a record whose scalars were read already.
Result<void> read_record_members(const JsonReader& reader, RunRecord& record) {
  if (const json* batch = reader.member("batch")) {
    auto read = read_batch(*batch);
    if (!read) return std::move(read).error();
    record.batch = *read;
  }
  record.nodes = texts_of(reader, "nodes");
  if (const json* attempts = reader.member("attempts"); attempts != nullptr && attempts->is_array()) {
    for (const auto& item : *attempts) {
      auto attempt = read_attempt(item);
      if (!attempt) return std::move(attempt).error();
      record.attempts.push_back(std::move(attempt).value());
    }
  }
  if (const json* note = reader.member("precompile"); note != nullptr && note->is_object()) {
    JsonReader members(*note, "precompile");
    record.precompile.emplace();
    members.read("run", record.precompile->run);
    members.read_optional("seconds", record.precompile->seconds);
    RETURN_IF_ERROR(members.finish());
  }
  if (const json* said = reader.member("predicted"); said != nullptr && said->is_object()) {
    auto prediction = read_prediction(*said);
    if (!prediction) return std::move(prediction).error();
    record.predicted = std::move(*prediction);
  }
  if (const json* versions = reader.member("versions"); versions != nullptr && versions->is_object()) {
    for (const auto& [library, version] : versions->items()) {
      if (version.is_string()) record.versions[library] = version.get<std::string>();
    }
  }
  const json* metrics = reader.member("metrics");
  if (metrics == nullptr || metrics->is_null()) return {};
  if (const json* peaks = metrics->is_object() && metrics->contains("peak_memory_bytes")
                              ? &(*metrics)["peak_memory_bytes"]
                              : nullptr;
      peaks != nullptr && peaks->is_array()) {
    for (size_t rank = 0; rank < peaks->size() && rank < static_cast<size_t>(record.world_size); ++rank) {
      if ((*peaks)[rank].is_number_integer()) {
        record.peak_memory_bytes[static_cast<int>(rank)] = (*peaks)[rank].get<int64_t>();
      }
    }
  }
  if (!metrics->is_object() || !metrics->contains("steps")) return {};
  auto training = read_metrics(*metrics);
  if (!training) return std::move(training).error();
  record.metrics = std::move(training).value();
  const json* planned = reader.member("planned");
  if (planned != nullptr && planned->is_object() && planned->contains("memory_bytes")) {
    auto memory = read_memory((*planned)["memory_bytes"]);
    if (!memory) return std::move(memory).error();
    record.metrics->planned = *memory;
  }
  return {};
}

std::string utc_time(double unix_seconds) {
  constexpr double kYear10000 = 253402300800.0;
  const auto seconds =
      static_cast<std::time_t>(unix_seconds >= 0.0 && unix_seconds < kYear10000 ? unix_seconds : 0.0);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

const char* status_name(RunStatus status) {
  switch (status) {
    case RunStatus::kRunning:
      return "running";
    case RunStatus::kCompleted:
      return "completed";
    case RunStatus::kFailed:
      return "failed";
    case RunStatus::kRefused:
      return "refused";
    case RunStatus::kPreempted:
      return "preempted";
  }
  return "unknown";
}

std::string to_json(const RunRecord& record) {
  json attempts = json::array();
  for (const Attempt& attempt : record.attempts) attempts.push_back(attempt_json(attempt));
  json metrics = record.metrics ? metrics_json(*record.metrics) : json::object();
  json peaks = json::array();
  for (int rank = 0; rank < record.world_size && !record.peak_memory_bytes.empty(); ++rank) {
    const auto found = record.peak_memory_bytes.find(rank);
    peaks.push_back(found == record.peak_memory_bytes.end() ? json(nullptr) : json(found->second));
  }
  metrics["peak_memory_bytes"] = peaks;
  json planned = json::object();
  if (record.metrics) planned["memory_bytes"] = memory_json(record.metrics->planned);
  return dump_json({{"format_version", RunRecord::kFormatVersion},
                    {"name", record.name},
                    {"id", record.id},
                    {"scheduler", record.scheduler},
                    {"status", status_name(record.status)},
                    {"verdict", record.verdict},
                    {"exit_code", record.exit_code},
                    {"world_size", record.world_size},
                    {"nodes", record.nodes},
                    {"batch", batch_json(record.batch)},
                    {"attempts", attempts},
                    {"metrics", metrics},
                    {"planned", planned},
                    {"predicted", prediction_json(record.predicted)},
                    {"precompile", precompile_json(record.precompile)},
                    {"versions", record.versions}});
}

Result<RunRecord> parse_run_record(std::string_view text) {
  auto object = parse_json(text, "record.json");
  if (!object) return std::move(object).error();
  JsonReader reader(*object, "record.json");
  int version = 0;
  reader.read("format_version", version);
  RETURN_IF_ERROR(reader.finish());
  if (version > RunRecord::kFormatVersion) {
    return base::Error(base::Code::kUnsupported,
                       fmt::format("record.json has format {}, this version reads {}; use a newer shardrun",
                                   version, RunRecord::kFormatVersion));
  }
  RunRecord record;
  std::string status;
  reader.read("name", record.name);
  reader.read("id", record.id);
  reader.read("scheduler", record.scheduler);
  reader.read("status", status);
  reader.read("verdict", record.verdict);
  reader.read("exit_code", record.exit_code);
  reader.read("world_size", record.world_size);
  RETURN_IF_ERROR(reader.finish());
  if (record.world_size < 0 || record.world_size > LaunchPlan::kLargestWorld) {
    return base::Error(base::Code::kCorrupt,
                       fmt::format("record.json: {} is no number of ranks", record.world_size));
  }
  bool known = false;
  for (const RunStatus candidate : kStatuses) {
    if (status != status_name(candidate)) continue;
    record.status = candidate;
    known = true;
  }
  if (!known) return base::Error(base::Code::kCorrupt, "record.json: unknown status \"" + status + "\"");
  RETURN_IF_ERROR(read_record_members(reader, record));
  return record;
}

std::string to_json(const RankExit& exit) {
  return dump_json({{"format_version", 1},
                    {"global_rank", exit.global_rank},
                    {"node", exit.node},
                    {"ended", exit.ended},
                    {"exit_code", optional_json(exit.exit_code)},
                    {"signal", optional_json(exit.signal)},
                    {"peer_lost", exit.peer_lost},
                    {"stopped_on_request", exit.stopped_on_request},
                    {"peak_memory_bytes", exit.peak_memory_bytes},
                    {"out_of_memory", optional_json(exit.out_of_memory)},
                    {"last_words", exit.last_words}});
}

Result<RankExit> parse_rank_exit(std::string_view text) {
  auto object = parse_json(text, "the rank's exit file");
  if (!object) return std::move(object).error();
  JsonReader reader(*object, "the rank's exit file");
  RankExit exit;
  reader.read("global_rank", exit.global_rank);
  reader.read("node", exit.node);
  reader.read("ended", exit.ended);
  reader.read_optional("exit_code", exit.exit_code);
  reader.read_optional("signal", exit.signal);
  reader.read("peer_lost", exit.peer_lost);
  reader.read("stopped_on_request", exit.stopped_on_request);
  reader.read("peak_memory_bytes", exit.peak_memory_bytes);
  reader.read_optional("out_of_memory", exit.out_of_memory);
  reader.read("last_words", exit.last_words);
  RETURN_IF_ERROR(reader.finish());
  return exit;
}

std::string to_json(const TrainingMetrics& metrics) {
  json object = metrics_json(metrics);
  object["planned_memory_bytes"] = memory_json(metrics.planned);
  object["format_version"] = 1;
  return dump_json(object);
}

Result<TrainingMetrics> parse_training_metrics(std::string_view text) {
  auto object = parse_json(text, "summary.json");
  if (!object) return std::move(object).error();
  return read_metrics(*object);
}

std::string to_results_json(const RunRecord& record) {
  json list = json::array();
  const double ended = record.attempts.empty() ? 0.0 : record.attempts.back().ended.value_or(0.0);
  const double started = record.attempts.empty() ? 0.0 : record.attempts.front().started;
  const auto add = [&](const char* name, const json& value, const char* units,
                       const json& additional = json::object()) {
    list.push_back({{"MetricName", name},
                    {"MeasuredValue", value},
                    {"Units", units},
                    {"Timestamp", utc_time(ended)},
                    {"AdditionalData", additional}});
  };
  json parameters = {{"Model", record.name},
                     {"World size", record.world_size},
                     {"Data parallel degree", record.batch.data_parallel},
                     {"Batch size", record.batch.micro_batch},
                     {"Gradient accumulation microsteps", record.batch.gradient_accumulation}};
  if (record.metrics) {
    parameters["Total steps"] = record.metrics->steps;
    if (record.metrics->final_loss) add("Final loss", *record.metrics->final_loss, "");
    if (ended > started) add("Time to train", (ended - started) / 60.0, "minutes");
    add("Average throughput", record.metrics->tokens_per_second, "tokens/s");
    for (const plan::Utilization& one : record.metrics->utilization) {
      const json of = {
          {"Peak", one.peak.kind}, {"Peak FLOP/s of a rank", one.peak.flops}, {"Source", one.peak.source}};
      add("Model FLOPs utilization", one.causal, "", of);
      add("Model FLOPs utilization, all scores", one.full, "", of);
    }
    if (record.predicted && record.predicted->tokens_per_second)
      add("Predicted throughput", *record.predicted->tokens_per_second, "tokens/s");
  }
  return dump_json({{"results", {{"parameters", parameters}, {"metrics", list}}}});
}

}  // namespace shardrun::record
