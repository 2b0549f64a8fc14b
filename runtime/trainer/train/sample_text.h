// What a person sees of the data that a run learns from: a sequence as text, and which of it is learned.
//
// Thread rule: free functions.
#pragma once

#include <memory>
#include <string>

#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/model/model.h"

namespace shardrun::train {

// Returns the tokenizer that made such tokens: that of bytes, or the one beside the weights that training began with, a folder or a
// file in it; null where neither did.
std::unique_ptr<data::Tokenizer> find_tokenizer(const data::TokenizerFacts& facts,
                                                const std::string& weights);

// Returns the first sequence of a batch of sequences of `length` tokens as Markdown: its text, without padding, and the tokens that
// are predicted, where they are not all.
std::string sample_text(const data::Tokenizer& tokenizer, const model::Batch& batch, int64_t length);

}  // namespace shardrun::train
