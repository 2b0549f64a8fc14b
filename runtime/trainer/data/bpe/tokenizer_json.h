// What a Hugging Face tokenizer.json of the model "BPE" says, read and checked; what this project does not do is refused
// by name, so that no text is ever tokenized almost right.
//
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/bpe/form.h"
#include "runtime/trainer/data/bpe/merges.h"
#include "runtime/trainer/data/bpe/word_cutter.h"

namespace shardrun::data::bpe {

// A token beside the vocabulary of the merges.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // never found in text; a chat template places it
  bool normalized = false;  // looked for behind the normalizers
};

struct TokenizerFile {
  std::vector<Normalizer> normalizers;  // applied to what stands between added tokens
  std::vector<Normalizer> shapers;      // applied after them, by a pre-tokenizer
  std::vector<Split> splits;
  MergeRules rules;
  std::vector<AddedToken> added;
  int32_t begin = -1, end = -1, unknown = -1, pad = -1, mask = -1;  // -1: the file has none
  int32_t vocabulary = 0;                                           // ids are in [0, vocabulary)
};

// Reads the text of a tokenizer.json and of the tokenizer_config.json beside it, which may be empty. The token that ends a
// document is the one that the post-processor places, else the configuration's eos_token. Only a RoBERTa's file has a mask.
// kCorrupt for what is no such file, kInvalid for what is one and not served here.
Result<TokenizerFile> read_tokenizer_json(std::string_view tokenizer, std::string_view config);

}  // namespace shardrun::data::bpe
