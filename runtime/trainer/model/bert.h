// BERT: forward and explicit backward of a BERT encoder with both heads of its pre-training: masked tokens and
// next sentence. No dropout: the network is a pure function of its input.
//
// Blocks (model.h says what a block is):
//   block 0            word, position and type embeddings with their LayerNorm, and everything of the heads: the
//                      classifier of masked tokens shares its matrix with the word embedding
//   block 1 … layers   attention + GELU feed-forward, each followed by its LayerNorm
// Visits: 0, 1 … layers, 0. In backward each visit of block 0 writes the whole block's gradient, with zeros where
// the other one has its part; the sum of both is the gradient.
//
// Batch: `targets` ≥ 0 mark the masked tokens; only their rows pass through the classifier. `lengths` are the
// tokens of each row that are no padding, `segments` the token types, `next_sentence` the labels. With
// `document_begins` a token sees its own document only, whose positions count from its begin; the next-sentence
// label belongs to the document in column 0. Word 0 is a word like any other: padding has no gradient because
// nobody sees it, not because of its number.
//
// Shapes: B micro-batch, T sequence length, C hidden, H heads, D = C/H, F ffn, V vocabulary, P positions, N = B·T.
// Thread rule: as model.h.
// Source: Devlin et al. 2019; layout and numerics follow Hugging Face BertForPreTraining.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/workspace.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/model/options.h"

namespace shardrun::model {

struct BertConfig {
  int layers = 0, hidden = 0, heads = 0, ffn = 0, vocab = 0;
  int max_positions = 512, type_vocab = 2;
  double norm_epsilon = 1e-12;
};

// kInvalid with what and the mend: hidden % heads, non-positive sizes.
base::Result<void> check(const BertConfig& config);
std::vector<BlockLayout> block_layouts(const BertConfig& config);
// Model FLOPs of one token, forward and backward: 6·(matmul parameters of the layers) + 12·layers·C·T, and the head
// of masked tokens for the share of tokens that are predicted.
double flops_per_token(const BertConfig& config, int sequence_length, double predicted_share = 0.15);

class Bert : public Model {
 public:
  static ActivationBytes activation_bytes(const BertConfig& config, const ModelOptions& options);
  // As Llama::ops. The head's products come in many sizes, up to the listed ones.
  static kernels::OpList ops(const BertConfig& config, const ModelOptions& options);
  // kInvalid as check() says, or for a sequence longer than max_positions; kIo without that much memory.
  static Result<std::unique_ptr<Bert>> create(const BertConfig& config, const ModelOptions& options);

  // (N,C) of the last layer in the compute dtype; valid from its forward until the next one.
  virtual std::span<const std::byte> hidden_states() const = 0;
};

}  // namespace shardrun::model
