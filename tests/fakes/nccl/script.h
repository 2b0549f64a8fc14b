// What tests can make the stand-ins for libcuda.so.1 and libnccl.so.2 do. Each library exports one of these
// scripts, which a test finds with dlsym. Everything is set before ranks begin and read by all of them.
#pragma once

#include <atomic>

namespace shardrun::fakes {

// The script of libcuda.so.1, symbol "fake_cuda_script".
struct CudaScript {
  std::atomic<int> dawdle_microseconds{0};  // longest delay of work on streams made from now on
  std::atomic<bool> ignores_events{false};  // skips waits between streams: to see that a test notices
  std::atomic<int> seed{1};
};

// The script of libnccl.so.2, symbol "fake_nccl_script". Ranks are those of a communicator; -1 means none.
struct NcclScript {
  std::atomic<int> polls{2};                // polls until a call is carried out
  std::atomic<int> init_error_rank{-1};     // its communicators report ncclSystemError instead of being made
  std::atomic<int> remote_error_rank{-1};   // reports ncclRemoteError from its third operation on
  std::atomic<int> stalling_rank{-1};       // its operations are never put on the stream
  std::atomic<bool> aborts_wait{false};     // an abort waits for other communicators' operations on its GPU
  std::atomic<int> aborts{0}, destroys{0};  // counted
  std::atomic<int> narrow_configs{0};       // communicators asked for with one channel at most
  std::atomic<int> unusual_configs{0};      // communicators asked for with a network's name
};

}  // namespace shardrun::fakes
