// The backend (kernels/backend.h) of one NVIDIA GPU. This header needs no CUDA header.
//
// Thread rule: as Backend. State: run on an H100.
#pragma once

#include <memory>

#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/cuda/device.h"

namespace shardrun::kernels::cuda {

// Makes the backend, which takes 16 MiB of pinned memory. Error: kIo.
Result<std::unique_ptr<Backend>> make_backend(std::unique_ptr<Device> device);

}  // namespace shardrun::kernels::cuda
