// ModelOptions: how a model is run, whatever its architecture: what a plan knows of it (plan::ModelRun), and with whom and
// where it runs.
//
// Thread rule: plain values.
#pragma once

#include <string>

#include "runtime/plan/model/run.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::model {

using plan::Checkpointing;

struct ModelOptions : plan::ModelRun {    // its device is the backend's
  std::string offload_directory{};        // of the file that a CPU's activations wait in
  comm::Communicator* tensor = nullptr;   // the ranks that share each matrix; null: this one alone
  comm::Communicator* experts = nullptr;  // the ranks that share experts; null: this one has them all
  kernels::Backend* backend = &kernels::cpu_backend();  // outlives the model
  comm::Communicator* context = nullptr;  // the ranks that share each sequence; null: this one has all of it
};

}  // namespace shardrun::model
