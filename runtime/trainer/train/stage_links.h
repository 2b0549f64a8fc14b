// StageLinks: how a stage of a pipeline gets activations from the stage before and gives its own to the next, and their
// gradients the other way. Of stages with several chunks, the last one's next is the first.
//
// Each direction between two ranks has a communicator of those two, on which a message is an all-to-all: both know how long it
// is, and only one sends. A message is received into a buffer of its own, asked for as soon as that is free, and one is sent from
// another: so it travels while the stage computes, and no order of turns can make two stages wait for each other.
//
// Errors: whatever the communicators report, with the stage that was waited for; afterwards only destruction is allowed, and
// the communicators must be destroyed before, because an operation in flight still names memory of it.
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/plan/pipeline.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/train/groups.h"

namespace shardrun::train {

using base::Result;

class StageLinks {
 public:
  // Messages of `bytes`. kIo without that much memory.
  static Result<StageLinks> create(const plan::Stage& stage, const StageGroups& groups, int64_t bytes);

  // A step begins, of so many micro-steps.
  Result<void> begin(int64_t micro_steps, bool backward);
  // Before and after a turn is computed.
  Result<void> receive(const plan::Turn& turn, const model::StageBorder& border);
  Result<void> send(const plan::Turn& turn, const model::StageBorder& border);
  // Waits until all was sent.
  Result<void> finish();

 private:
  // One direction, as one of its two ranks sees it; without a communicator it does nothing.
  struct Wire {
    comm::Communicator* pair = nullptr;
    int stage = 0;  // at the other end
    base::Memory memory{};
    std::optional<comm::Pending> pending{};
    int64_t expected = 0;  // messages that are to be received, and were not asked for yet

    Result<void> take_memory(int64_t bytes);
    Result<void> expect(int64_t messages);
    Result<void> ask();
    Result<void> receive(std::span<std::byte> to);
    Result<void> send(std::span<const std::byte> from);
    Result<void> wait();
    Result<void> start(bool sends);
  };

  plan::Stage stage_;
  Wire from_before_, to_before_, from_next_, to_next_;
};

}  // namespace shardrun::train
