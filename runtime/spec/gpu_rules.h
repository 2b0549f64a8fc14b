// What a job spec with [resources] device = "gpu" may say.
//
// Thread rule: pure but for `reading`.
#pragma once

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

// Refuses, by name, what the trainer cannot do on a GPU yet, and refuses more ranks than GPUs.
void check_gpu_training(const TomlValue& document, SpecReading& reading, const JobSpec& spec);

}  // namespace shardrun::spec
