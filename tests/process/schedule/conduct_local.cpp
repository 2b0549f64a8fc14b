// conduct_local SPEC RUN_DIRECTORY: runs a job under the conductor and the local scheduler, as `shardrun run` does, and
// ends with the record's exit code. It is a process of its own, as a process can hold one PMIx server in its life.
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "launcher/agent/conductor.h"
#include "launcher/schedule/local/local_scheduler.h"
#include "launcher/schedule/stop_signals.h"
#include "runtime/base/io.h"

using namespace shardrun;

namespace {

int fail(const base::Error& error) {
  std::fprintf(stderr, "conduct_local: %s\n", error.to_string().c_str());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto signals = launcher::StopSignals::block();
  if (!signals) return fail(signals.error());
  auto spec = spec::load_job_spec(argv[1]);
  if (!spec) return fail(spec.error());
  auto text = base::read_file(argv[1]);
  if (!text) return fail(text.error());

  launcher::ConductRequest request;
  request.spec = &*spec;
  request.spec_text = *text;
  request.stop_fd = signals->fd();
  request.launch_time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  request.plan.name = spec->name;
  request.plan.id = "local-test";
  request.plan.scheduler = "local";
  request.plan.run_directory = argv[2];
  request.plan.working_directory = std::filesystem::path(argv[1]).parent_path();
  request.plan.rank_program = BIN_DIR "/shardrun-rank";
  request.plan.plugin_directory = BIN_DIR;
  request.plan.nodes = spec->resources.nodes;
  request.plan.ranks_per_node = spec->resources.ranks_per_node;
  request.plan.cpus_per_rank = spec->resources.cpus_per_rank;
  const int64_t world = request.plan.world_size();
  request.plan.batch = {/*global_batch=*/2 * world, /*micro_batch=*/1, /*gradient_accumulation=*/2,
                        /*data_parallel=*/world};

  auto scheduler = launcher::make_local_scheduler();
  auto record = launcher::conduct(*scheduler, request);
  if (!record) return fail(record.error());
  std::fprintf(stderr, "%s\n", record->verdict.c_str());
  return record->exit_code;
}
