// When things happened on the GPU, on the host's clock.
#include <chrono>

#include "runtime/trainer/kernels/cuda/launch.cuh"

namespace shardrun::kernels::cuda {

void Device::stamp() {
  OpScope op(*this, "stamp");
  State& s = *state_;
  if (!op.runs()) return;
  if (s.stamps_used == s.stamps.size()) {
    cudaEvent_t event = nullptr;
    if (!op.check(cudaEventCreate(&event))) return;
    s.stamps.push_back(event);
  }
  if (op.check(cudaEventRecord(s.stamps[s.stamps_used], op.stream()))) ++s.stamps_used;
}

// The last stamp's time is now: everything before it is done, and nothing was put behind it.
base::Result<std::vector<int64_t>> Device::take_stamps() {
  stamp();
  RETURN_IF_ERROR(synchronize());
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  State& s = *state_;
  const size_t last = std::exchange(s.stamps_used, 0) - 1;
  std::vector<int64_t> times;
  for (size_t i = 0; i < last; ++i) {
    float milliseconds = 0.0F;
    if (const cudaError_t error = cudaEventElapsedTime(&milliseconds, s.stamps[i], s.stamps[last]);
        error != cudaSuccess) {
      (void)cudaGetLastError();
      return base::Error(base::Code::kIo,
                         std::string("reading the GPU's clock: ") + cudaGetErrorString(error));
    }
    times.push_back(now - static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6));
  }
  return times;
}

}  // namespace shardrun::kernels::cuda
