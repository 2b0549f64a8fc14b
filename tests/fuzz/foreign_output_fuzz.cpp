// Runs libFuzzer over what other programs and other ranks say: srun's messages, the answers of sbatch, squeue and scontrol, an MPI
// host file, nvidia-smi's table, the versions of what is installed, and the address of a rank as each plugin packs it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "launcher/schedule/mpirun/mpirun_scheduler.h"
#include "launcher/schedule/slurm/refusals.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/schedule/slurm/srun_messages.h"
#include "launcher/submit/installed.h"
#include "launcher/submit/slurm_options.h"
#include "plugins/nccl/address.h"
#include "plugins/ofi/address.h"
#include "runtime/base/result.h"
#include "runtime/gate/gpus.h"

// Requires that what is accepted comes back the same from the bytes that we would send for it.
template <typename Address>
void check_address(std::span<const std::byte> bytes) {
  Address address, again;
  if (!unpack(bytes, &address).ok()) return;
  SHARDRUN_CHECK(unpack(pack(address), &again).ok());
  SHARDRUN_CHECK(pack(again) == pack(address));
}

// Jobs are named by digits, whatever is said, for their names become words of commands and names of folders.
void check_slurm(const std::string& text) {
  using namespace shardrun;
  if (const auto job = launcher::submitted_job(text))
    SHARDRUN_CHECK(!job->empty() && job->find_first_not_of("0123456789_") == std::string::npos);
  for (const std::string& job : launcher::listed_jobs(text))
    SHARDRUN_CHECK(!job.empty() && job.find_first_of(" \n") == std::string::npos);
  (void)launcher::is_known(launcher::listed_jobs(text), "123_4");
  (void)launcher::is_end_of_job(launcher::scontrol_field(text, "JobState"));
  (void)launcher::meaning_of_reason(launcher::scontrol_field(text, "Reason"));
  spec::JobSpec spec;
  spec.slurm.qos = "high";
  spec.slurm.options = {{"mem-bind", "local"}, {"spread-job", ""}};
  (void)launcher::check_slurm_options(spec, text, "sbatch");
  (void)launcher::explain_refusal(spec, base::Error(base::Code::kIo, text));
  (void)launcher::pmix_plugins_in(text);
  SHARDRUN_CHECK(launcher::plugin_version_in(text).size() <= 32);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  constexpr int kWorldSize = 1000;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto message = launcher::parse_srun_line(text, kWorldSize)) {
    for (const record::RankExit& exit : message->exits) {
      SHARDRUN_CHECK(exit.global_rank >= 0 && exit.global_rank < kWorldSize);
    }
  }
  for (const int rank : launcher::parse_task_list(text, kWorldSize))
    SHARDRUN_CHECK(rank >= 0 && rank < kWorldSize);
  check_slurm(std::string(text));
  (void)launcher::parse_host_file(text);
  (void)gate::parse_gpus(text);
  check_address<ofi::RankAddress>(std::as_bytes(std::span(data, size)));
  check_address<nccl::RankAddress>(std::as_bytes(std::span(data, size)));
  return 0;
}
