// Ranks of the nccl plugin as threads of a test, over the stand-ins for libnccl and libcuda (tests/fakes/nccl).
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/gate/network_check.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "tests/fakes/nccl/script.h"

namespace shardrun::nccl_test {

using Clock = std::chrono::steady_clock;

// The stand-ins, loaded before the plugin asks the loader for libraries of these names.
struct Fakes {
  Fakes() {
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
  fakes::CudaScript* cuda = nullptr;
  fakes::NcclScript* nccl = nullptr;
  int (*create)(void**, unsigned, int) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*launch)(void*, void (*)(void*), void*) = nullptr;
  int (*synchronize)(void*) = nullptr;
};

// A compute stream of the stand-in.
class Stream {
 public:
  explicit Stream(Fakes& fakes) : fakes_(fakes) { fakes_.create(&handle_, 1, 0); }
  ~Stream() { fakes_.destroy(handle_); }
  void* handle() const { return handle_; }
  void put(std::function<void()> work) {
    fakes_.launch(
        handle_,
        [](void* argument) {
          const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(argument));
          (*own)();
        },
        new std::function<void()>(std::move(work)));
  }
  void synchronize() { fakes_.synchronize(handle_); }

 private:
  Fakes& fakes_;
  void* handle_ = nullptr;
};

using Body = std::function<void(int rank, comm::PluginSession& session)>;

inline void run_ranks(int ranks, const Body& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
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

inline std::string text_of(const base::Result<void>& result) {
  return result ? "" : fmt::format("{}|{}", base::code_name(result.error().code()), result.error().message());
}
inline std::string finish(comm::Communicator& communicator, const base::Result<comm::Pending>& pending) {
  return text_of(pending ? communicator.wait(*pending) : base::Result<void>(pending.error()));
}
inline std::unique_ptr<comm::Communicator> opened(base::Result<std::unique_ptr<comm::Communicator>> result) {
  REQUIRE_MESSAGE(result, (result ? "" : result.error().to_string()));
  return std::move(*result);
}

}  // namespace shardrun::nccl_test
