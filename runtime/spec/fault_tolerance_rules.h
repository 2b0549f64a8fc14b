// The [fault_tolerance] section of a job spec.
//
// Thread rule: pure but for `reading`.
#pragma once

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

// Reads the section of a job whose `resources` are read. Refuses what would never come about, and a time limit within which
// Slurm would tell the job to stop as it begins.
void read_fault_tolerance(const TomlValue& document, SpecReading& reading, const ResourcesSpec& resources,
                          FaultToleranceSpec& faults);

}  // namespace shardrun::spec
