// What a BERT consists of and holds, by arithmetic: an encoder with both heads of its pre-training, masked tokens and
// next sentence; or a RoBERTa, which has no second head, one token type, and counts positions from kRobertaFirstPosition.
//
// Blocks (block_layout.h says what a block is):
//   block 0            word, position and type embeddings with their LayerNorm, and everything of the heads: the
//                      classifier of masked tokens shares its matrix with the word embedding; a RoBERTa has no
//                      pooler and no classifier of pairs
//   block 1 … layers   attention + GELU feed-forward, each followed by its LayerNorm
// Visits: 0, 1 … layers, 0. It cannot be cut for a tensor group: tensor_parallel is 1.
//
// Thread rule: plain values and pure functions.
// Source: Devlin et al. 2019, Liu et al. 2019; layout and numerics follow Hugging Face BertForPreTraining and
// RobertaForMaskedLM.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/block_layout.h"
#include "runtime/plan/model/ops.h"
#include "runtime/plan/model/run.h"
#include "runtime/plan/model/shape.h"
#include "runtime/plan/utilization.h"

namespace shardrun::plan {

// Rows of a RoBERTa's table of positions that no token has: fairseq counts from behind the padding token, which is token 1.
inline constexpr int kRobertaFirstPosition = 2;

struct BertConfig {
  static constexpr const char* kTrainer = "bert";  // its name in spec::kArchitectures

  int layers = 0, hidden = 0, heads = 0, ffn = 0, vocab = 0;
  int max_positions = 512, type_vocab = 2;
  double norm_epsilon = 1e-12;
  bool next_sentence = true;  // whether it has that head; a RoBERTa has not

  int first_position() const { return next_sentence ? 0 : kRobertaFirstPosition; }
  static BertConfig of(const spec::ModelSpec& model);
};

// kInvalid with what and the mend: hidden % heads, non-positive sizes.
base::Result<void> check(const BertConfig& config);
ModelShape shape_of(const BertConfig& config);
std::vector<BlockLayout> block_layouts(const BertConfig& config, int tensor_rank = 0,
                                       int tensor_parallel = 1);
// Model FLOPs of one token, forward and backward: 6·(matmul parameters of the layers) + 12·layers·C·T, and the head
// of masked tokens for the share of tokens that are predicted. No mask hides scores: both credits are one.
FlopsPerToken flops_per_token(const BertConfig& config, int sequence_length);
// Returns how many of so many words are masked.
int64_t masked_words(int64_t words);
// Returns how many tokens around the words of a sequence are none: [CLS] and a [SEP] behind each of its sentences.
int special_tokens(bool next_sentence);
// Returns how many tokens of a sequence its batches give a target, at most.
int64_t most_targets(const BertConfig& config, int sequence_length);
ActivationBytes activation_bytes(const BertConfig& config, const ModelRun& run, int tensor_parallel = 1);
// Returns what a rank will call of ops that take memory beside activations. The head's products come in many sizes, up to
// the listed ones.
OpList ops(const BertConfig& config, const ModelRun& run, int tensor_parallel = 1);
// Returns the configuration as transformers has it for BertForPreTraining or RobertaForMaskedLM, without dropout: one line of JSON
// with sorted keys.
std::string hf_config(const BertConfig& config);

}  // namespace shardrun::plan
