#include "runtime/contract/rank_job.h"

#include <string>

#include "runtime/base/io.h"
#include "runtime/record/run_dir.h"

namespace shardrun::contract {

Result<RankJob> read_rank_job() {
  RankJob job;
  auto env = read_rank_env(process_environment());
  if (!env) return std::move(env).error();
  job.env = std::move(*env);
  const record::RunDir run{job.env.run_directory};
  const std::string plan_path = run.attempt_plan(job.env.attempt);
  auto plan_text = base::read_file(plan_path);
  if (!plan_text && plan_text.error().code() == base::Code::kNotFound) {
    return base::Error(base::Code::kRefused, run.unseen_by(job.env.node_name));
  }
  if (!plan_text) return std::move(plan_text).error();
  auto plan = record::parse_launch_plan(*plan_text);
  if (!plan) return std::move(plan).error().context("reading " + plan_path);
  job.plan = std::move(*plan);
  auto spec = spec::load_job_spec(run.job_toml(), job.plan.overrides);
  if (!spec) return std::move(spec).error();
  job.spec = std::move(*spec);
  return job;
}

}  // namespace shardrun::contract
