// The makers of each kind of tokenizer; open_tokenizer() chooses among them by name.
//
// Errors are those of open_tokenizer. Thread rule: free functions, thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {

// Returns the text in which a piece of SentencePiece's alphabet spells "▁" for a blank.
std::string with_spaces(std::string_view piece);

// Opens a SentencePiece model, unigram or BPE, which the library itself reads.
Result<std::unique_ptr<Tokenizer>> open_sentencepiece_tokenizer(const std::string& path);

// Opens a Hugging Face tokenizer.json whose model is BPE: byte-level, or over characters with or without fallback to bytes.
// The ids are those of the tokenizers package with encode_special_tokens, as runtime/trainer/data/bpe reads the file.
Result<std::unique_ptr<Tokenizer>> open_bpe_tokenizer(const std::string& path);

// Opens BERT's tokenizer over a vocab.txt, one piece a line. do_lower_case, strip_accents and
// tokenize_chinese_chars are taken from a tokenizer_config.json beside it; without that file they are
// BERT-uncased's.
// Source: Devlin et al. 2018 (basic tokenization, then the longest known piece first), with the details of Hugging
// Face's BertNormalizer and BertPreTokenizer, whose older Unicode tables class some hundred rare characters
// differently. Control, format and private characters are dropped; a word of more than 100 characters, or with a
// part that no piece fits, is [UNK].
Result<std::unique_ptr<Tokenizer>> open_wordpiece_tokenizer(const std::string& path);

}  // namespace shardrun::data
