// The [precompile] section of a job spec, which is for command programs alone.
//
// Thread rule: pure but for `reading`.
#pragma once

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

// Reads the section. Refuses one beside the built-in trainer.
void read_precompile(const TomlValue& document, SpecReading& reading, const ProgramSpec& program,
                     PrecompileSpec& precompile);

}  // namespace shardrun::spec
