#include <doctest/doctest.h>

#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/results.h"
#include "runtime/record/run_lines.h"
#include "runtime/record/run_record.h"

using namespace shardrun;

namespace {

// Returns a file that a run of version 0.1.0 left; tests/unit/record/data has the run of a small Llama and one that failed.
std::string file(const std::string& name) {
  const auto text = base::read_file(SOURCE_DIR "/tests/unit/record/data/" + name);
  REQUIRE(text);
  return *text;
}

// Returns the file without the lines of members that no version writes any more, and with what its writer did not know.
std::string file_as_written_now(const std::string& name) {
  std::string kept;
  const std::string text = file(name);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string line(base::take_line(rest));
    if (line.find("\"kernels\"") == line.npos && line.find("\"kernels_only\"") == line.npos &&
        line.find("\"retry_kernels\"") == line.npos)
      kept += line + "\n";
    if (name == "plan.json" && line.find("\"id\"") != line.npos) kept += "  \"identity\": \"\",\n";
    if (line.find("\"context\"") != line.npos) kept += line.substr(0, line.find('"')) + "\"frozen\": 0,\n";
  }
  return kept;
}

template <typename Line>
std::string written(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) text += to_json(line);
  return text;
}

}  // namespace

TEST_CASE(
    "records that were written before are read: a run that trained, and what is written of it is the same") {
  const auto record = record::parse_run_record(file("trained_record.json"));

  REQUIRE(record);
  CHECK(record->status == record::RunStatus::kCompleted);
  CHECK_EQ(record->attempts.at(0).checkpoint_step, 20);
  CHECK_EQ(record->attempts.at(0).batch.micro_batch, 8);
  CHECK_EQ(record->metrics->final_loss, 3.115326561412904);
  CHECK_EQ(record->metrics->step_seconds_p99, 0.494302645);
  CHECK_EQ(record->metrics->flops_per_token.full, 5406720.0);
  CHECK_EQ(record->metrics->planned.saving, 5872384);
  CHECK_EQ(record->metrics->versions.at("comm provider"), "shm");
  CHECK_EQ(record->peak_memory_bytes.at(1), 74678272);
  CHECK_EQ(record->predicted->step_seconds, std::nullopt);
  CHECK_EQ(to_json(*record), file_as_written_now("trained_record.json"));
  CHECK_EQ(record::to_results_json(*record, nullptr), file("trained_results.json"));
}

TEST_CASE(
    "records that were written before are read: a run that failed, and what is written of it is the same") {
  const auto record = record::parse_run_record(file("failed_record.json"));

  REQUIRE(record);
  CHECK(record->status == record::RunStatus::kFailed);
  CHECK_EQ(record->attempts.at(0).first_cause->global_rank, 1);
  CHECK_EQ(record->attempts.at(0).first_cause->exit_code, 3);
  CHECK_FALSE(record->metrics);
  CHECK_EQ(record->peak_memory_bytes.at(0), 3870720);
  CHECK_EQ(to_json(*record), file("failed_record.json"));
  CHECK_EQ(record::to_results_json(*record, nullptr), file("failed_results.json"));
}

TEST_CASE("records that were written before are read: plan, summary, exit files and watch") {
  const auto plan = record::parse_launch_plan(file("plan.json"));
  REQUIRE(plan);
  CHECK_EQ(plan->overrides.at(0), "optimizer.steps=20");
  CHECK_EQ(plan->batch.global_batch, 16);
  CHECK_EQ(to_json(*plan), file_as_written_now("plan.json"));

  const auto summary = record::parse_training_metrics(file("summary.json"));
  REQUIRE(summary);
  CHECK_EQ(summary->steps, 20);
  CHECK_EQ(summary->planned.masters, 1607936);
  CHECK_EQ(to_json(*summary), file_as_written_now("summary.json"));

  const auto failed = record::parse_rank_exit(file("rank_1.exit.json"));
  const auto stopped = record::parse_rank_exit(file("rank_0.exit.json"));
  REQUIRE(failed);
  REQUIRE(stopped);
  CHECK_EQ(failed->exit_code, 3);
  CHECK_EQ(stopped->signal, 15);

  const auto watch = contract::parse_watch_place(file("watch.json"));
  REQUIRE(watch);
  CHECK_EQ(watch->port, 32803);
  CHECK_EQ(watch->addresses, std::vector<std::string>{"127.0.0.1"});
  CHECK_EQ(watch->lease_seconds, 3.0);
  CHECK_EQ(watch->key, "");
}

TEST_CASE("records that were written before are read: metrics.jsonl and events.jsonl, line by line") {
  const std::string metrics = file("metrics.jsonl");
  const auto lines = record::parse_metrics(metrics);
  REQUIRE_EQ(lines.size(), 8);
  CHECK_EQ(lines[0].event, "first_barrier");
  CHECK_EQ(lines[1].step, 1);
  CHECK_EQ(lines[1].loss, 5.54164919);
  CHECK_EQ(lines[1].loss_hex, "0x1.62aa6158302cbp+2");
  CHECK_EQ(written(lines), metrics);
  CHECK_EQ(record::last_step(metrics), 20);
  CHECK_EQ(record::last_checkpoint(metrics, 0), 20);
  CHECK_EQ(record::last_checkpoint(metrics, 1), std::nullopt);

  const auto events = record::parse_events(file("events.jsonl"));
  REQUIRE_EQ(events.size(), 3);
  CHECK_EQ(events[0].nodes, std::vector<std::string>{"n1"});
  CHECK_EQ(events[1].kind, "exit");
  CHECK_EQ(events[2].next, "stop");
  CHECK_EQ(written(events), file("events.jsonl"));
}

TEST_CASE(
    "records that were written before are read: members that the first version had not are absent or empty") {
  const auto record = record::parse_run_record(
      R"({"format_version": 1, "name": "x", "id": "7", "scheduler": "slurm", "status": "running", "verdict": "running",
          "exit_code": 0, "world_size": 2, "attempts": [{"started": 1.5, "ended": null, "first_cause": null}],
          "metrics": {}, "versions": {}})");

  REQUIRE(record);
  CHECK_EQ(record->attempts.at(0).number, 0);
  CHECK_EQ(record->attempts.at(0).verdict, "");
  CHECK_EQ(record->attempts.at(0).world_size, 0);
  CHECK(record->peak_memory_bytes.empty());
  CHECK_FALSE(record->predicted);
  CHECK_FALSE(record->precompile);
}

TEST_CASE(
    "records that are damaged are refused with the document, the keys that lead there, and what is wrong") {
  const std::string text = file("failed_record.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    const auto read = record::parse_run_record(changed.replace(at, from.size(), to));
    REQUIRE_FALSE(read);
    return read.error().to_string();
  };

  CHECK_EQ(with("\"kind\": \"exit\"", "\"kind\": 3"),
           "record.json attempts first_cause: \"kind\" is number, not a string");
  CHECK_EQ(with("\"global_batch\": 2", "\"global_batch\": 1e30"),
           "record.json attempts batch: \"global_batch\" is number, not an integer in range");
  CHECK_EQ(with("\"also_lost\": []", "\"also_lost\": {}"),
           "record.json attempts: \"also_lost\" is object, not a list");
  CHECK_EQ(with("\"status\": \"failed\"", "\"status\": \"lost\""), "record.json: unknown status \"lost\"");
  CHECK_EQ(with("\"started\"", "\"begun\""), "record.json attempts: \"started\" is missing, not a number");
  CHECK_EQ(with("\"format_version\": 1", "\"format_version\": 2"),
           "record.json has format 2, this version reads 1; use a newer shardrun");
}
