// Tokenizer: turns text into token ids. Four kinds stand behind one interface.
//
//   byte           token = byte value; a document ends with token 0
//   sentencepiece  a model file of the SentencePiece library, like Llama's tokenizer.model; a document stands
//                  between the model's begin and end tokens, where it has them
//   bpe            a tokenizer.json of Hugging Face with byte-pair merges, like those of Llama 3, Qwen and SmolLM2; a
//                  document stands between the tokens that its post-processor or tokenizer_config.json name
//   wordpiece      BERT's vocab.txt; documents get no special tokens, runtime/trainer/data/bert_loader.h places them
//
// Text never becomes a special token: "</s>" or "[MASK]" in a document are letters, whoever wrote them.
// Thread rule: immutable after open; all methods are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::data {

using base::Result;

// Ids with a meaning of their own; -1 where the tokenizer has none.
struct SpecialTokens {
  int32_t begin = -1;  // <s>, [CLS]
  int32_t end = -1;    // </s>, [SEP]
  int32_t unknown = -1;
  int32_t pad = -1;
  int32_t mask =
      -1;  // of a vocabulary for masked words: who trains places the others around a text, not who encodes it
  bool operator==(const SpecialTokens&) const = default;
};

// What a token file says about the tokenizer that made it.
struct TokenizerFacts {
  std::string kind;        // "byte", "sentencepiece", "bpe" or "wordpiece"
  uint32_t hash = 0;       // CRC-32C of the model or vocabulary file; 0 for byte
  int32_t vocabulary = 0;  // ids are in [0, vocabulary)
  SpecialTokens special;
  bool operator==(const TokenizerFacts&) const = default;
};

inline constexpr int32_t kByteVocabulary = 256;
inline constexpr int32_t kDocumentSeparator = 0;
TokenizerFacts byte_tokenizer_facts();

struct Token {
  int32_t id = 0;
  // Number of bytes of the text up to the end of what the token stands for; for wordpiece, up to the end of the
  // word that it is part of.
  uint32_t end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const TokenizerFacts& facts() const = 0;
  // Appends the tokens of `text`, without special tokens. Bytes that are not UTF-8 count as U+FFFD. kInvalid for
  // what the library refuses. `text` has at most kMaximumTextBytes.
  virtual Result<void> encode(std::string_view text, std::vector<Token>& out) const = 0;
  // Returns the bytes that a token stands for, which may be part of a character; "" for special tokens, and for ids that the
  // tokenizer does not have. wordpiece has no way back: always "".
  virtual std::string bytes_of(int32_t /*id*/) const { return ""; }
  // Returns what a person reads of a token: its bytes; of a special token its name, as control_token() takes it; else "<id>".
  virtual std::string spelling_of(int32_t id) const;
  // Returns the id of the token that stands for `content` as a whole, such as "<|im_end|>", and that text never becomes by
  // itself; -1 where there is none. Chat templates place such tokens.
  virtual int32_t control_token(std::string_view /*content*/) const { return -1; }
  // Returns all texts that have such a token.
  virtual std::vector<std::string> control_names() const { return {}; }
};

inline constexpr size_t kMaximumTextBytes = size_t{64} << 20;

// `name` is "byte", PATH.model (SentencePiece), PATH/tokenizer.json (byte-pair merges) or PATH/vocab.txt (WordPiece).
// Errors: kInvalid for another name and for a file that needs what is not served, kNotFound, kIo, and kCorrupt for a file
// that is not a model or vocabulary.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& name);

}  // namespace shardrun::data
