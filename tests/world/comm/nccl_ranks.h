// Ranks of the nccl plugin as threads of a test, over the stand-ins for libnccl and libcuda (tests/fakes/nccl).
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/comm/plugin_communicator.h"
#include "tests/fakes/nccl/script.h"

namespace shardrun::nccl_test {

using Clock = std::chrono::steady_clock;

// The stand-ins, loaded before the plugin asks the loader for libraries of these names.
struct Fakes {
  Fakes();
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

void run_ranks(int ranks, const Body& body, std::chrono::milliseconds timeout = std::chrono::seconds(20));

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
