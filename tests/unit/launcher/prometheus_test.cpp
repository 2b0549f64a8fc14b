#include "launcher/view/prometheus.h"

#include <doctest/doctest.h>

#include "launcher/verbs/run_sample.h"
#include "runtime/record/run_lines.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;

TEST_CASE("prometheus: each family has its help, its type, and a sample for each run that has a value") {
  StepPoint step;
  step.step = 120;
  step.loss = 2.5;
  step.tokens_per_second = 1250000;
  step.time = 1790000000.5;
  RunSample trains{"llama", "17", "slurm", "running", 16, 2, step};
  trains.utilization = 0.5;
  trains.resident_memory_bytes = 3221225472;
  trains.faults = 1;
  trains.detection_seconds = 2.5;
  const RunSample waits{"bert", "18", "slurm", "pending (Resources)", 0, 0, {}};

  CHECK(prometheus_text({trains, waits}) ==
        "# HELP shardrun_run_state 1 for the state that the run is in.\n"
        "# TYPE shardrun_run_state gauge\n"
        "shardrun_run_state{name=\"llama\",id=\"17\",scheduler=\"slurm\",state=\"running\"} 1\n"
        "shardrun_run_state{name=\"bert\",id=\"18\",scheduler=\"slurm\",state=\"pending\"} 1\n"
        "# HELP shardrun_run_ranks Ranks of the newest attempt.\n"
        "# TYPE shardrun_run_ranks gauge\n"
        "shardrun_run_ranks{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 16\n"
        "# HELP shardrun_run_attempts Attempts so far; 1 without a restart.\n"
        "# TYPE shardrun_run_attempts gauge\n"
        "shardrun_run_attempts{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 2\n"
        "# HELP shardrun_run_step The last step that was reported.\n"
        "# TYPE shardrun_run_step gauge\n"
        "shardrun_run_step{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 120\n"
        "# HELP shardrun_run_loss The loss of that step.\n"
        "# TYPE shardrun_run_loss gauge\n"
        "shardrun_run_loss{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 2.5\n"
        "# HELP shardrun_run_tokens_per_second Tokens per second in that step, of all ranks.\n"
        "# TYPE shardrun_run_tokens_per_second gauge\n"
        "shardrun_run_tokens_per_second{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 1250000\n"
        "# HELP shardrun_run_last_step_timestamp_seconds When the step ended, in Unix time.\n"
        "# TYPE shardrun_run_last_step_timestamp_seconds gauge\n"
        "shardrun_run_last_step_timestamp_seconds{name=\"llama\",id=\"17\",scheduler=\"slurm\"} "
        "1790000000.5\n"
        "# HELP shardrun_run_model_flops_utilization Share of the ranks' peak FLOP/s in that step.\n"
        "# TYPE shardrun_run_model_flops_utilization gauge\n"
        "shardrun_run_model_flops_utilization{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 0.5\n"
        "# HELP shardrun_run_resident_memory_bytes What the rank that holds most holds now.\n"
        "# TYPE shardrun_run_resident_memory_bytes gauge\n"
        "shardrun_run_resident_memory_bytes{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 3221225472\n"
        "# HELP shardrun_run_fault_detection_seconds From the last sign of life to the alarm, at the newest "
        "fault.\n"
        "# TYPE shardrun_run_fault_detection_seconds gauge\n"
        "shardrun_run_fault_detection_seconds{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 2.5\n"
        "# HELP shardrun_run_faults Attempts that ended by a fault.\n"
        "# TYPE shardrun_run_faults gauge\n"
        "shardrun_run_faults{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 1\n"
        "# HELP shardrun_run_stragglers Ranks that were too slow, in attempts that are over.\n"
        "# TYPE shardrun_run_stragglers gauge\n"
        "shardrun_run_stragglers{name=\"llama\",id=\"17\",scheduler=\"slurm\"} 0\n"
        "# EOF\n");
  CHECK(prometheus_text({}) == "# EOF\n");
}

TEST_CASE("prometheus: a name cannot end its label") {
  const RunSample hostile{"a\"} 1\nshardrun_run_loss{x=\"\\", "1", "local", "completed", 1, 1, {}};
  CHECK(prometheus_text({hostile}).find("name=\"a\\\"} 1\\\\x0ashardrun_run_loss{x=\\\"\\\\\",id=\"1\"") !=
        std::string::npos);
}

TEST_CASE(
    "prometheus: checkpoint and validation are told for as long as a run goes on, however many steps "
    "follow") {
  const tests::Folder folder;
  std::string lines = R"({"event":"validation","step":2,"loss":2.5,"attempt":0})"
                      "\n"
                      R"({"event":"checkpoint","step":3,"path":"/x","time":1790000000.5,"attempt":0})"
                      "\n";
  for (int step = 4; step < 4000; ++step) {
    record::MetricsLine line;
    line.step = step;
    line.loss = 2.0;
    line.loss_hex = "0x1.0000000000000p+1";
    line.tokens_per_second = 1234567.0;
    line.time = 1790000001.0 + step;
    line.attempt = 0;
    lines += to_json(line);
  }
  REQUIRE(lines.size() > 256 << 10);
  folder.file("metrics.jsonl", lines);

  const RunSample sample = sample_of({folder.path()}, {});

  CHECK(sample.last_step->step == 3999);
  CHECK(sample.validation_loss == 2.5);
  CHECK(sample.checkpoint_step == 3.0);
  CHECK(sample.checkpoint_time == 1790000000.5);
}
