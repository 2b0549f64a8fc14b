// ActivationMemory: what a model keeps its activations in, as its options say: in the backend's memory, with layers that
// wait in a file, or with layers that wait in pinned memory of the host.
//
// `Plan` is a model's buffers over nullptr: saved_bytes, scratch_bytes, piece_bytes, offload_window(), and layers with the
// begin of their pieces.
// Internal to runtime/trainer/model. Errors: kIo without that much memory. Thread rule: thread-compatible.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/memory.h"
#include "runtime/trainer/model/offloaded_layers.h"
#include "runtime/trainer/model/options.h"

namespace shardrun::model {

struct ActivationMemory {
  base::Memory saved, scratch;
  std::unique_ptr<OffloadedLayers> offloaded;  // null: all layers stay; goes before the memory
};

template <typename Plan>
Result<ActivationMemory> allocate_activations(const Plan& plan, const ModelOptions& options) {
  auto saved = options.offloads_to_file()
                   ? base::Memory::create_in_file(plan.saved_bytes, options.offload_directory)
                   : options.backend->allocate(plan.saved_bytes);
  if (!saved) return std::move(saved).error().context("activations");
  auto scratch = options.backend->allocate(plan.scratch_bytes);
  if (!scratch) return std::move(scratch).error().context("activations");
  ActivationMemory memory{std::move(saved).value(), std::move(scratch).value(), nullptr};
  if (!options.offloads_to_host()) return memory;
  const auto layers = static_cast<int>(plan.layers.size());
  std::byte* const second = layers > 1 ? memory.saved.data() + plan.layers[1].begin : nullptr;
  auto made =
      OffloadedLayers::create(layers, plan.piece_bytes, {memory.saved.data(), second}, *options.backend);
  if (!made) return std::move(made).error().context("activations that wait on the host");
  memory.offloaded = std::move(made).value();
  return memory;
}

}  // namespace shardrun::model
