// ModelRun: how a model is run, as far as what it holds depends on it, whatever its architecture; and what it holds.
//
// Thread rule: plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::plan {

using base::DeviceKind;
using base::DType;
// What backward computes again so that forward need not keep it: nothing; norms and activation functions, one pass over
// memory each; everything of a layer but its input.
using spec::Checkpointing;

// Neighbouring layers.
struct LayerRange {
  int first = 0, count = 0;

  int end() const { return first + count; }
  bool has(int layer) const { return layer >= first && layer < end(); }
};

// What a stage of a pipeline has of a model; as it stands: all of it.
struct StageOfModel {
  bool has_embedding = true, has_head = true;
  std::vector<LayerRange> chunks{};  // empty: one of all layers
  int64_t held = 0;                  // layers' activations that are held at once; 0: those of all, once

  bool is_whole() const { return chunks.empty(); }
  bool has(int layer) const {
    return is_whole() || std::any_of(chunks.begin(), chunks.end(),
                                     [=](const LayerRange& chunk) { return chunk.has(layer); });
  }
  // Those of the model's visits that it has, without experts: of the embedding, each layer and the head.
  std::vector<int> visits(int of_model) const {
    std::vector<int> ours;
    for (int visit = 0; visit < of_model; ++visit) {
      const bool is_head = visit + 1 == of_model;
      if (visit == 0 ? has_embedding : is_head ? has_head : has(visit - 1)) ours.push_back(visit);
    }
    return ours;
  }
  // The number of its first visit of each chunk, and behind them that of all.
  std::vector<int> visit_begins() const {
    std::vector<int> begins = {0};
    for (const LayerRange& chunk : chunks) begins.push_back(begins.back() + chunk.count);
    for (size_t chunk = 1; chunk < begins.size() && has_embedding; ++chunk) ++begins[chunk];
    if (has_head) ++begins.back();
    return begins;
  }
};

struct ModelRun {
  DType compute = DType::kFp32;
  int micro_batch = 1, sequence_length = 1;
  Checkpointing checkpointing = Checkpointing::kNone;
  // Whether activations that wait for backward lie in a file; a GPU's then lie in pinned memory of the host.
  bool offload = false;
  int64_t most_targets = 0;  // tokens of a micro-batch with a target, of which a BERT has few; 0: all
  DeviceKind device = DeviceKind::kCpu;
  bool fp8 = false;          // the linear layers of a Llama's blocks, beside bf16
  bool accumulates = false;  // whether backward is asked to add, to what other micro-steps gave
  int context_parallel = 1;  // ranks that share each sequence
  StageOfModel stage{};

  bool offloads_to_host() const { return offload && device == DeviceKind::kGpu; }
  bool offloads_to_file() const { return offload && device == DeviceKind::kCpu; }
};

// What a model holds of activations; it allocates exactly these, once.
struct ActivationBytes {
  int64_t resident = 0;
  int64_t offloaded = 0;       // in a file, or pinned, beside a GPU's memory
  int64_t offload_window = 0;  // of a file, in memory at a time: two layers' worth
};

// Numbers in a model's `losses`: the micro-batch's two sums, then at kChunkLoss that of the chunk of rows at hand.
inline constexpr int64_t kChunkLoss = 2, kLosses = 3;

// Tensors of a block that are quantized in fp8: input, weight and output gradient of four linear layers.
inline constexpr int64_t kFp8TensorsOfBlock = 12;

// Layers of a GPU whose activations wait on the host take turns in so many pieces of its memory.
inline constexpr int64_t kOffloadSlots = 2;

// Returns the pieces of memory for so many layers: as many, unless they wait on the host.
inline int64_t layer_slots(int64_t layers, const ModelRun& run) {
  return run.offloads_to_host() ? std::min(layers, kOffloadSlots) : layers;
}

// Returns the bytes of pinned memory in which the pieces of so many layers wait; the last ones stay in the GPU's memory.
inline int64_t waiting_bytes(int64_t layers, int64_t piece_bytes) {
  return std::max<int64_t>(0, layers - kOffloadSlots) * piece_bytes;
}

// `buffers`: a model's, over nullptr: saved_bytes, scratch_bytes, piece_bytes, offload_window() and layers.
template <typename Buffers>
ActivationBytes planned_activations(const Buffers& buffers, const ModelRun& run) {
  if (run.offloads_to_file()) return {buffers.scratch_bytes, buffers.saved_bytes, buffers.offload_window()};
  const auto layers = static_cast<int64_t>(buffers.layers.size());
  return {.resident = buffers.saved_bytes + buffers.scratch_bytes,
          .offloaded = run.offloads_to_host() ? waiting_bytes(layers, buffers.piece_bytes) : 0};
}

}  // namespace shardrun::plan
