#include "runtime/contract/rank_job.h"

#include <string>

#include "runtime/base/io.h"
#include "runtime/contract/epoch.h"
#include "runtime/record/run_dir.h"

namespace shardrun::contract {

Result<RankJob> read_rank_job() {
  RankJob job;
  ASSIGN_OR_RETURN(auto env, read_rank_env(process_environment()));
  job.env = std::move(env);
  const record::RunDir run{job.env.run_directory};
  const std::string plan_path = run.attempt_plan(job.env.attempt);
  auto plan_text = base::read_file(plan_path);
  if (!plan_text && plan_text.error().code() == base::Code::kNotFound) {
    return base::Error(base::Code::kRefused, run.unseen_by(job.env.node_name));
  }
  RETURN_IF_ERROR(plan_text);
  RETURN_IF_ERROR(check_epoch(run, job.env.attempt));
  auto plan = record::parse_launch_plan(*plan_text);
  if (!plan) return std::move(plan).error().context("reading " + plan_path);
  job.plan = std::move(*plan);
  auto spec = spec::load_job_spec(run.job_toml(), job.plan.overrides);
  RETURN_IF_ERROR(spec);
  job.spec = std::move(*spec);
  return job;
}

}  // namespace shardrun::contract
