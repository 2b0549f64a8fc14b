// Which section of a job spec a key belongs to, for messages about one that stands somewhere else.
//
// Thread rule: pure functions.
#pragma once

#include <string_view>

namespace shardrun::spec {

// Returns the section of a key that people look for elsewhere: "nodes" → "resources"; "" for one that is not known here.
std::string_view section_of_key(std::string_view key);

}  // namespace shardrun::spec
