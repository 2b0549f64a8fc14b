// The [precompile] section of a job spec, which says other things to the trainer than to a command.
//
// Thread rule: pure but for `reading`.
#pragma once

#include "runtime/contract/job_spec.h"
#include "runtime/contract/spec_reader.h"
#include "runtime/contract/toml_value.h"

namespace shardrun::contract {

void read_precompile(const TomlValue& document, SpecReading& reading, const ProgramSpec& program,
                     PrecompileSpec& precompile);

}  // namespace shardrun::contract
