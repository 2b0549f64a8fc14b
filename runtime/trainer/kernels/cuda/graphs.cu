#include "runtime/trainer/kernels/cuda/graphs.cuh"

#include "runtime/trainer/kernels/cuda/launch.cuh"

namespace shardrun::kernels::cuda {
namespace {

using base::Code;
using base::Error;
using base::Result;

struct Captured {
  Result<void> ops{};  // what the ops returned
  cudaError_t status = cudaSuccess;
  cudaGraphExec_t graph = nullptr;
};

// Meanwhile the stream takes nothing else, and calls of other threads do not disturb the capture.
Captured capture(cudaStream_t stream, const std::function<Result<void>()>& ops) {
  if (const cudaError_t begun = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
      begun != cudaSuccess) {
    return {.status = begun};
  }
  Captured made{.ops = ops()};
  cudaGraph_t graph = nullptr;
  made.status = cudaStreamEndCapture(stream, &graph);
  if (made.status != cudaSuccess) return made;
  made.status = cudaGraphInstantiate(&made.graph, graph, 0);
  (void)cudaGraphDestroy(graph);
  return made;
}

}  // namespace

void Graphs::clear(cudaStream_t stream) {
  if (graphs_.empty()) return;
  (void)cudaStreamSynchronize(stream);  // the next op finds what fails here
  for (const auto& [what, graph] : graphs_) {
    if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

void Device::use_graphs(bool on) {
  state_->graphs.clear(state_->stream);
  state_->uses_graphs = on;
}

Result<void> Device::repeat(const Repetition& what, const std::function<Result<void>()>& ops) {
  State& s = *state_;
  if (!s.uses_graphs || s.tuning || s.wait_after_each_op || s.failure) return ops();
  if (s.graphs.is_first(what)) return ops();
  cudaGraphExec_t& graph = s.graphs.of(what);
  if (graph == nullptr) {
    const Captured made = capture(s.stream, ops);
    graph = made.graph;
    if (!made.ops) return made.ops.error();
    if (made.status != cudaSuccess || s.failure) {
      (void)cudaGetLastError();
      const std::string why =
          s.failure ? s.failure->to_string()
                    : std::string(cudaGetErrorName(made.status)) + ": " + cudaGetErrorString(made.status);
      s.failure = Error(Code::kIo, std::string("making a CUDA graph of ") + what.name + ": " + why +
                                       "; [gpu] graphs = false starts ops one by one");
      return *s.failure;
    }
  }
  OpScope op(*this, what.name);
  if (op.runs() && op.check(cudaGraphLaunch(graph, s.stream))) ++s.graph_launches;
  return {};
}

int64_t Device::graph_launches() const {
  return state_->graph_launches;
}

}  // namespace shardrun::kernels::cuda
