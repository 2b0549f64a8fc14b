// The [precompile] section of a job spec, which is for command programs alone.
//
// Thread rule: pure but for `reading`.
#pragma once

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

// Reads the section into a spec whose resources, program and [slurm] are read. Refuses one beside the built-in trainer, and
// fewer nodes than [slurm] names.
void read_precompile(const TomlValue& document, SpecReading& reading, JobSpec& spec);

}  // namespace shardrun::spec
