// Secrets: which variables hold one, by name or by value, so that it is written nowhere.
//
// Thread rule: pure functions.
#pragma once

#include <string_view>

namespace shardrun::spec {

// Says whether a variable of this name holds a secret. The end of the name decides: OPENAI_KEY and DB_PASS hold one,
// TOKENIZERS_PARALLELISM, MAX_TOKENS and HF_TOKEN_PATH none.
bool looks_secret(std::string_view variable);
// Returns the password of a URL such as "postgres://user:password@host/db"; empty where there is none.
std::string_view password_in_url(std::string_view value);

}  // namespace shardrun::spec
