// HostMoments: keeps both moments of a GPU's optimizer in pinned host memory and takes them through the GPU and
// back.
//
// A pass cuts them into pieces. Three slots of GPU memory take the pieces in turn, so that while one is updated the
// next arrives and the previous one leaves, on two streams beside the GPU's compute stream:
//   in        waits until its slot has been emptied, and brings a piece
//   compute   waits until the piece is there, and updates it
//   out       waits until the piece is updated, and takes it to its place on the host
// So a pass takes as long as the slower direction of the transfers, unless the updates take longer.
//
// Errors: kIo with the driver's words.
// Thread rule: as the backend's; another thread may read the moments between finish() and the next pass.
// Source: the same three steps are in llmq (offloaded optimizer states by copies) and ZeRO-Infinity (Rajbhandari 2021).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/base/device_link.h"
#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/plan/optimizer_state.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::optim {

using base::Result;

class HostMoments {
 public:
  // Takes plan::moments() of the host for moments of `elements` each, all of it pinned, and of the GPU. They start at zero.
  // The backend is a GPU's and outlives them. kIo without that much memory.
  static Result<std::unique_ptr<HostMoments>> create(int64_t elements, kernels::Backend& backend,
                                                     int64_t piece_elements = plan::kMomentPiece);
  // Does the same over the given link, with the GPU's memory that pieces pass through: zero, plan::moments().resident of it.
  static Result<std::unique_ptr<HostMoments>> create(int64_t elements, std::unique_ptr<base::DeviceLink> link,
                                                     base::Memory slots, int64_t piece_elements);
  // Waits for what is under way.
  ~HostMoments();
  HostMoments(const HostMoments&) = delete;
  HostMoments& operator=(const HostMoments&) = delete;

  // These lie in host memory, which the host may touch after finish() and before the next pass.
  std::span<float> moment1() const { return moment1_; }
  std::span<float> moment2() const { return moment2_; }
  Result<void> finish();

  // Puts ops on the GPU's stream that update elements [first, first + moment1.size()), which lie in the GPU's
  // memory.
  using Update = std::function<void(int64_t first, std::span<float> moment1, std::span<float> moment2)>;
  // Updates each piece once, in order. Returns before that is done; what is put on the GPU's stream afterwards
  // comes after it.
  Result<void> pass(const Update& update);

 private:
  using Mark = std::unique_ptr<base::DeviceLink::Mark>;
  struct Slot {
    std::span<float> moment1, moment2;
    Mark arrived, updated, emptied;
  };

  HostMoments(std::unique_ptr<base::DeviceLink> link, base::Memory slots, int64_t piece_elements)
      : link_(std::move(link)), piece_(piece_elements), gpu_(std::move(slots)) {}
  Result<void> take_memory(int64_t elements);
  Result<void> make_slots(int64_t elements);
  Result<void> bring(Slot& slot, int64_t first, size_t count);
  Result<void> take_back(Slot& slot, int64_t first, size_t count);

  std::unique_ptr<base::DeviceLink> link_;
  int64_t piece_;
  std::unique_ptr<base::DeviceLink::PinnedMemory> host_;
  base::Memory gpu_;
  std::span<float> moment1_, moment2_;
  std::array<Slot, plan::kMomentSlots> slots_;
};

}  // namespace shardrun::optim
