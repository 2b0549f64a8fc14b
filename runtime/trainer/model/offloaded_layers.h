// OffloadedLayers: activations of a GPU's layers that wait for backward in pinned memory of the host.
//
// Two slots of the GPU's memory take the layers in turn, layer l in slot l % 2. After a layer's forward its piece goes to
// the host beside the forward of the next; before its backward it comes back, beside the backward of the one above. The
// last two layers stay where they are. Marks say who waits for whom:
//   out       waits for the layer's forward
//   compute   waits, before it writes to a slot in forward, until what was there is gone; in backward, until it is back
//   in        waits until backward is done with what was in the slot
//
// Backward only reads what forward kept: pieces are never taken to the host again.
//
// Errors: kIo with the driver's words. Thread rule: as the backend's.
// Source: llmq keeps residuals so ("offload residuals"), over two buffers; vDNN (Rhu et al. 2016).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/device_link.h"
#include "runtime/base/result.h"
#include "runtime/plan/model/run.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::model {

using base::Result;

class OffloadedLayers {
 public:
  static constexpr int kSlots = plan::kOffloadSlots;

  using Slots = std::array<std::byte*, kSlots>;
  // Takes plan::waiting_bytes() of the host. `slots` say where pieces lie in the GPU's memory, which outlives this, as the
  // backend does; a single layer has one slot. kIo without that much memory.
  static Result<std::unique_ptr<OffloadedLayers>> create(int layers, int64_t piece_bytes, const Slots& slots,
                                                         kernels::Backend& backend);
  // Waits for what is under way.
  ~OffloadedLayers();
  OffloadedLayers(const OffloadedLayers&) = delete;
  OffloadedLayers& operator=(const OffloadedLayers&) = delete;

  // Before forward writes the first value of the layer.
  Result<void> before_forward(int layer);
  // After forward has computed it, unless no backward follows.
  Result<void> after_forward(int layer);
  // Before backward reads it: the layers come in descending order, each once.
  Result<void> before_backward(int layer);

 private:
  using Mark = std::unique_ptr<base::DeviceLink::Mark>;
  struct Slot {
    std::byte* memory = nullptr;
    Mark gone, back;
    bool is_going = false;  // `gone` is of this forward
  };

  OffloadedLayers(int layers, int64_t piece_bytes, std::unique_ptr<base::DeviceLink> link)
      : layers_(layers), piece_(piece_bytes), link_(std::move(link)) {}
  Result<void> take_memory(const Slots& slots);
  bool stays(int layer) const { return layer + kSlots >= layers_; }
  Slot& slot(int layer) { return slots_[layer % kSlots]; }
  std::byte* home(int layer) const { return host_->bytes().data() + static_cast<size_t>(layer) * piece_; }
  Result<void> bring_back(int layer);

  int layers_;
  size_t piece_;
  std::unique_ptr<base::DeviceLink> link_;
  std::unique_ptr<base::DeviceLink::PinnedMemory> host_;
  std::array<Slot, kSlots> slots_;
  Mark computed_;
};

}  // namespace shardrun::model
