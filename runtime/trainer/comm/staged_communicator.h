// Staged: a communicator for buffers in device memory, made of one for host memory.
//
// Each operation is cut into pieces; a piece is copied into pinned memory, goes through the host's collective, and
// is copied back while the next one is already being copied out. Sums are the host communicator's, bit for bit,
// however they are cut. Order on the device is as communicator.h promises it. Several ranks may share one device.
//
// A thread of its own carries operations out one after the other, so they make progress whatever the caller does.
// The device's part of an operation (what was on the compute stream before it) and the host's collective may each
// take as long as the timeout; both count from when the operations before it are over.
// Destroying one with operations in flight aborts the host communicator. A group of one rank copies inside the
// device.
//
// Memory: plan::staging_bytes(size, piece) of pinned memory (runtime/plan/communication.h), taken by make_staged().
// Errors beside those of the host communicator: kIo with the driver's words, kTimeout when the device does not
// arrive at the operation. Thread rule: as for Communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "runtime/base/device_link.h"
#include "runtime/base/result.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::comm {

struct StagingOptions {
  int64_t piece_bytes = 0;  // plan::staging_piece_bytes(), the same on all ranks of the group
  std::chrono::milliseconds timeout{300000};
};

// `host` has not been used before: the tickets of both are counted together.
Result<std::unique_ptr<Communicator>> make_staged(std::unique_ptr<Communicator> host,
                                                  std::unique_ptr<base::DeviceLink> link,
                                                  const StagingOptions& options);

}  // namespace shardrun::comm
