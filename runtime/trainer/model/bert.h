// BERT: forward and explicit backward of a BERT encoder with both heads of its pre-training, masked tokens and next
// sentence, or of a RoBERTa, which has the first alone. No dropout: the network is a pure function of its input.
//
// runtime/plan/model/bert.h says what its blocks are. In backward each visit of block 0 writes the whole block's gradient,
// with zeros where the other one has its part; the sum of both is the gradient.
//
// Batch: `targets` ≥ 0 mark the masked tokens; only their rows pass through the classifier. `lengths` are the
// tokens of each row that are no padding, `segments` the token types, `next_sentence` the labels. With
// `document_begins` a token sees its own document only, whose positions count from its begin; the next-sentence
// label belongs to the document in column 0. Word 0 is a word like any other: padding has no gradient because
// nobody sees it, not because of its number.
//
// Shapes: B micro-batch, T sequence length, C hidden, H heads, D = C/H, F ffn, V vocabulary, P positions, N = B·T.
// Thread rule: as model.h.
// Source: Devlin et al. 2019, Liu et al. 2019; layout and numerics follow Hugging Face BertForPreTraining and
// RobertaForMaskedLM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/bert.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/model/options.h"

namespace shardrun::model {

using plan::BertConfig;

class Bert : public Model {
 public:
  // kInvalid as check() says, or for a sequence longer than max_positions; kIo without that much memory.
  static Result<std::unique_ptr<Bert>> create(const BertConfig& config, const ModelOptions& options);

  // (N,C) of the last layer in the compute dtype; valid from its forward until the next one.
  virtual std::span<const std::byte> hidden_states() const = 0;
};

}  // namespace shardrun::model
