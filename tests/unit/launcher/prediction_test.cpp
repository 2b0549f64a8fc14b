// What is said of a run before it starts, and what earlier runs of the job change about it.
#include <doctest/doctest.h>

#include <cmath>

#include <fmt/format.h>

#include "launcher/cluster/load_job.h"
#include "launcher/foresight/earlier_runs.h"
#include "launcher/foresight/prediction.h"
#include "runtime/base/io.h"
#include "runtime/record/run_record.h"
#include "tests/support/folder.h"
#include "tests/support/job_of_7b.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

const std::string kJob = tests::job_of_7b(4, "global_batch = 64\nmicro_batch = 2");

struct Prepared {
  spec::JobSpec spec;
  record::LaunchPlan plan;
};

Prepared job(const std::string& directory) {
  const auto loaded = load_spec_text(kJob, "job.toml", {});
  if (!loaded) FAIL(loaded.error().to_string());
  Prepared job{loaded->spec, {}};
  job.plan.name = "seven";
  job.plan.scheduler = "local";
  job.plan.run_directory = directory;
  job.plan.overrides = loaded->overrides;
  job.plan.nodes = 4;
  job.plan.ranks_per_node = job.spec.resources.ranks_per_node;
  job.plan.batch.global_batch = 64;
  job.plan.batch.micro_batch = 2;
  job.plan.batch.gradient_accumulation = 1;
  job.plan.batch.data_parallel = 32;
  return job;
}

// A run that took so long a step, as it leaves its directory.
void leave_run(const std::string& directory, double step_seconds,
               record::RunStatus status = record::RunStatus::kCompleted) {
  const Prepared done = job(directory);
  record::RunRecord record;
  record.name = "seven";
  record.status = status;
  record.world_size = 32;
  record.attempts.push_back({.started = 1e9});
  record.metrics.emplace();
  record.metrics->steps = 20;
  record.metrics->step_seconds_p50 = step_seconds;
  record.metrics->tokens_per_second = 64 * 4096 / step_seconds;
  REQUIRE(base::make_directories(directory));
  REQUIRE(base::write_file_atomically(directory + "/job.toml", kJob));
  REQUIRE(base::write_file_atomically(directory + "/plan.json", to_json(done.plan)));
  REQUIRE(base::write_file_atomically(directory + "/record.json", to_json(record)));
}

record::Prediction predict_in(const std::string& folder) {
  const Prepared next = job(folder + "/next");
  return predict_run(next.spec, next.plan);
}

}  // namespace

TEST_CASE(
    "prediction: a job on a machine of the catalogue has a step with an interval, from published runs") {
  const tests::Folder folder;
  const record::Prediction said = predict_in(folder.path());

  REQUIRE(said.step_seconds);
  REQUIRE(said.step_interval);
  CHECK((*said.step_interval)[0] < 0.95 * *said.step_seconds);
  CHECK((*said.step_interval)[1] > 1.05 * *said.step_seconds);
  CHECK(*said.tokens_per_second == doctest::Approx(64 * 4096 / *said.step_seconds));
  CHECK_FALSE(said.learned_from);
  CHECK_FALSE(said.basis_seconds);
  CHECK(record::basis_text(said) == "published runs");
}

TEST_CASE("prediction: it moves to what earlier runs of the job took, and is surer") {
  const tests::Folder folder;
  const record::Prediction before = predict_in(folder.path());
  leave_run(folder.path() + "/first", 1.25 * *before.step_seconds);

  const record::Prediction said = predict_in(folder.path());

  REQUIRE(said.learned_from == std::vector<std::string>{folder.path() + "/first"});
  CHECK(*said.step_seconds == doctest::Approx(1.25 * *before.step_seconds).epsilon(0.06));
  CHECK((*said.step_interval)[1] / (*said.step_interval)[0] <
        (*before.step_interval)[1] / (*before.step_interval)[0]);
  CHECK((*said.step_interval)[0] < 1.25 * *before.step_seconds);
  CHECK((*said.step_interval)[1] > 1.25 * *before.step_seconds);
  CHECK(record::basis_text(said) == "published runs and 1 earlier run of this job");
}

TEST_CASE("prediction: runs that failed, are cut short or lie elsewhere teach nothing") {
  const tests::Folder folder, elsewhere;
  const record::Prediction before = predict_in(folder.path());
  leave_run(folder.path() + "/failed", 3.0 * *before.step_seconds, record::RunStatus::kFailed);
  leave_run(elsewhere.path() + "/first", 3.0 * *before.step_seconds);
  REQUIRE(base::make_directories(folder.path() + "/broken"));
  REQUIRE(base::write_file_atomically(folder.path() + "/broken/record.json", "{"));

  const record::Prediction said = predict_in(folder.path());

  CHECK_FALSE(said.learned_from);
  CHECK(*said.step_seconds == doctest::Approx(*before.step_seconds));
  CHECK(earlier_runs(elsewhere.path()).size() == 1);
}

TEST_CASE("prediction: of many earlier runs the newest sixteen count") {
  const tests::Folder folder;
  for (int i = 0; i < 20; ++i) leave_run(fmt::format("{}/run_{:02}", folder.path(), i), 2.0);

  CHECK(earlier_runs(folder.path()).size() == 16);
}
