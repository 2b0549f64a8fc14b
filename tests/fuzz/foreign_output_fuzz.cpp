// Runs libFuzzer over what other programs and other ranks say: srun's messages, the answers of sbatch, squeue, sinfo and scontrol,
// git's list of a tree, an MPI host file, nvidia-smi's table, what a rank's program holds, the versions of what is installed, and
// the address of a rank as each plugin packs it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "launcher/plan/node_memory.h"
#include "launcher/schedule/mpirun/mpirun_scheduler.h"
#include "launcher/schedule/slurm/refusals.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/schedule/slurm/srun_messages.h"
#include "launcher/submit/installed.h"
#include "launcher/submit/slurm_options.h"
#include "launcher/submit/snapshot.h"
#include "plugins/nccl/address.h"
#include "plugins/nccl/efa.h"
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
  SHARDRUN_CHECK(launcher::has_silent_node(text + "\nidle*\n"));
  SHARDRUN_CHECK(launcher::has_silent_node(text + "\ndown*\n") == launcher::has_silent_node(text));
}

// A file more is its bytes more, as far as there are numbers for them.
void check_tree(const std::string& list) {
  using shardrun::launcher::weigh_tree;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kMore = 1000;
  const auto weight = weigh_tree(list),
             heavier = weigh_tree(list + '\0' + "100644 blob 1f2e    1000\tx" + '\0');
  SHARDRUN_CHECK(weight.largest_bytes >= 0 && weight.largest_bytes <= weight.bytes);
  SHARDRUN_CHECK(heavier.bytes == (weight.bytes > kMost - kMore ? kMost : weight.bytes + kMore));
  SHARDRUN_CHECK(heavier.largest_bytes == std::max(weight.largest_bytes, kMore));
  SHARDRUN_CHECK((heavier.largest == "x") == (weight.largest == "x" || weight.largest_bytes < kMore));
}

void check_installed(const std::string& text) {
  using namespace shardrun;
  (void)launcher::pmix_plugins_in(text);
  const std::string version = launcher::plugin_version_in(text);
  SHARDRUN_CHECK(version.size() <= 32 && version == nccl::ofi_version_in(text));
  (void)nccl::complaint_about({"libnccl-net.so", version}, "");
  (void)nccl::network_name(version);
  if (const auto program = launcher::program_in(text)) {
    const auto again = launcher::program_in(
        std::to_string(program->bytes) + " " + std::to_string(program->products) + " " +
        std::to_string(program->product_bytes) + " " + std::to_string(program->library_bytes) + "\n");
    SHARDRUN_CHECK(again && again->bytes == program->bytes && again->products == program->products &&
                   again->product_bytes == program->product_bytes &&
                   again->library_bytes == program->library_bytes);
  }
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
  check_tree(std::string(text));
  check_installed(std::string(text));
  (void)launcher::parse_host_file(text);
  (void)gate::parse_gpus(text);
  check_address<ofi::RankAddress>(std::as_bytes(std::span(data, size)));
  check_address<nccl::RankAddress>(std::as_bytes(std::span(data, size)));
  return 0;
}
