#include "tests/world/comm/nccl_ranks.h"

#include <dlfcn.h>

#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/gate/network_check.h"

namespace shardrun::nccl_test {

Fakes::Fakes() {
  void* cuda_library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
  void* nccl_library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_GLOBAL);
  REQUIRE(cuda_library != nullptr);
  REQUIRE(nccl_library != nullptr);
  cuda = static_cast<fakes::CudaScript*>(dlsym(cuda_library, "fake_cuda_script"));
  nccl = static_cast<fakes::NcclScript*>(dlsym(nccl_library, "fake_nccl_script"));
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(cuda_library, name));
  };
  find(create, "cuStreamCreateWithPriority");
  find(destroy, "cuStreamDestroy_v2");
  find(launch, "cuLaunchHostFunc");
  find(synchronize, "cuStreamSynchronize");
  cuda->dawdle_microseconds = 0;
  cuda->ignores_events = false;
  nccl->polls = 2;
  nccl->init_error_rank = nccl->remote_error_rank = nccl->stalling_rank = -1;
  nccl->aborts_wait = false;
  nccl->aborts = nccl->destroys = nccl->unusual_configs = nccl->narrow_configs = 0;
}

void run_ranks(int ranks, const Body& body, std::chrono::milliseconds timeout) {
  std::vector<comm::PluginSession> sessions;
  std::vector<comm::PeerCard> cards;
  for (int rank = 0; rank < ranks; ++rank) {
    auto session = comm::PluginSession::open({.plugin_path = NCCL_PLUGIN,
                                              .local_rank = rank,
                                              .node_count = 1,
                                              .device_index = rank % 4,
                                              .channel_count = gate::kNetworkChannels,
                                              .timeout = timeout});
    REQUIRE_MESSAGE(session, (session ? "" : session.error().to_string()));
    cards.push_back({session->local_address(), rank % 2 == 0 ? "n0" : "n1", static_cast<uint64_t>(rank % 2)});
    CHECK(cards.back().address.size() <= 1024);
    sessions.push_back(std::move(*session));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      comm::PluginSession session = std::move(sessions[static_cast<size_t>(rank)]);
      REQUIRE(session.connect(rank, cards));
      body(rank, session);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shardrun::nccl_test
