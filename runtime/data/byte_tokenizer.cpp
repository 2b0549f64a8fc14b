#include "runtime/data/tokenizer.h"

namespace shardrun::data {

TokenizerFacts byte_tokenizer_facts() {
  return {.kind = "byte", .hash = 0, .vocabulary = kByteVocabulary, .special = {.end = kDocumentSeparator}};
}

}  // namespace shardrun::data
