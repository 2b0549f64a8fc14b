// [environment]: the variables of the ranks, given or by reference.
//
// Thread rule: pure functions.
#pragma once

#include <map>
#include <string>

#include "runtime/spec/job_spec.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

// Refuses names that shardrun sets itself, and what looks like a secret written out.
void read_environment(const TomlValue& document, SpecReading& reading,
                      std::map<std::string, EnvironmentValue>& environment);

}  // namespace shardrun::spec
