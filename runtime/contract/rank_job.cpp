#include "runtime/contract/rank_job.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "runtime/base/io.h"
#include "runtime/base/shared_folder.h"
#include "runtime/contract/epoch.h"
#include "runtime/record/run_dir.h"

namespace shardrun::contract {

Result<record::LaunchPlan> read_plan_of_attempt(const record::RunDir& run, int attempt,
                                                const std::string& node) {
  base::look_afresh(run.root);  // an earlier attempt here may have looked for this one, in vain
  const std::string path = run.attempt_plan(attempt);
  const auto text = base::read_file(path);
  if (!text && text.error().code() == base::Code::kNotFound)
    return base::Error(base::Code::kRefused, run.unseen_by(node));
  RETURN_IF_ERROR(text);
  RETURN_IF_ERROR(check_epoch(run, attempt));
  auto plan = record::parse_launch_plan(*text);
  if (!plan) return std::move(plan).error().context("reading " + path);
  return plan;
}

Result<RankJob> read_rank_job(record::LaunchPhases* phases) {
  RankJob job;
  ASSIGN_OR_RETURN(auto env, read_rank_env(process_environment()));
  job.env = std::move(env);
  const record::RunDir run{job.env.run_directory};
  ASSIGN_OR_RETURN(job.plan, read_plan_of_attempt(run, job.env.attempt, job.env.node_name));
  if (phases != nullptr) phases->mark("read_plan");
  // A full disk costs lines. Where nothing can be written at all, nobody would hear of this rank: no log, no exit file, no
  // checkpoint.
  if (::access(run.attempt(job.env.attempt).c_str(), W_OK) != 0 && (errno == EROFS || errno == EACCES)) {
    return base::errno_error(base::Code::kRefused, run.unseen_by(job.env.node_name), errno);
  }
  auto spec = spec::load_job_spec(run.job_toml(), job.plan.overrides);
  RETURN_IF_ERROR(spec);
  job.spec = std::move(*spec);
  if (phases != nullptr) phases->mark("read_job");
  return job;
}

}  // namespace shardrun::contract
