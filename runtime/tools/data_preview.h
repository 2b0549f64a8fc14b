// A preview of training data: documents as the model will see them, and which of their tokens it learns.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::tools {

// Returns a document's tokens as encode_document() gives them, ~id for one without loss, under a line that counts them.
// `coloured`: what is learned is green and the rest is dim, for a terminal; else what is learned stands between
// ⟦ and ⟧. Nothing of the text steers a terminal.
std::string preview(const data::Tokenizer& tokenizer, std::span<const int32_t> ids, const std::string& place,
                    bool coloured);

}  // namespace shardrun::tools
