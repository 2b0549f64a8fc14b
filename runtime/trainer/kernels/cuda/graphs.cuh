// Graphs: a device's CUDA graphs by the name of what they start (kernels/repetition.h).
//
// A graph holds the addresses and choices of its capture, so whoever moves the workspace or changes whose kernels
// run clears them all. This header is only for the .cu files of this folder.
//
// Thread rule: as Device.
#pragma once

#include <cuda_runtime.h>

#include <map>

#include "runtime/trainer/kernels/repetition.h"

namespace shardrun::kernels::cuda {

class Graphs {
 public:
  // Says whether `what` comes for the first time since clear(). What comes first is run op by op: it makes plans,
  // loads code and finds the size of the workspace, none of which can be captured.
  bool is_first(const Repetition& what) { return graphs_.try_emplace(what, nullptr).second; }
  // Returns null until the graph is captured. The reference is valid until clear().
  cudaGraphExec_t& of(const Repetition& what) { return graphs_.at(what); }
  // Waits for the stream, which may still run the graphs. It must be called before the end.
  void clear(cudaStream_t stream);

 private:
  std::map<Repetition, cudaGraphExec_t> graphs_;
};

}  // namespace shardrun::kernels::cuda
