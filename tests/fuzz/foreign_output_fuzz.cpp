// Runs libFuzzer over what other programs and other ranks say: srun's messages, an MPI host file, nvidia-smi's
// table, and the address of a rank as each plugin packs it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "launcher/schedule/mpirun/mpirun_scheduler.h"
#include "launcher/schedule/slurm/srun_messages.h"
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
  (void)launcher::parse_host_file(text);
  (void)gate::parse_gpus(text);
  check_address<ofi::RankAddress>(std::as_bytes(std::span(data, size)));
  check_address<nccl::RankAddress>(std::as_bytes(std::span(data, size)));
  return 0;
}
