// Where each parameter of a BERT lies in its block.
//
// Internal to runtime/trainer/model. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/plan/model/bert_buffers.h"

namespace shardrun::model {

using plan::BertSizes;

// Offsets inside block 0, in the order of runtime/plan/model/bert.cpp; a RoBERTa has no pooler and no relation.
struct EmbeddingOffsets {
  explicit EmbeddingOffsets(const BertSizes& s)
      : word(0),
        position(s.V * s.C),
        type(position + s.P * s.C),
        gamma(type + s.types * s.C),
        beta(gamma + s.C),
        pooler(beta + s.C),
        pooler_bias(pooler + (s.relations > 0 ? s.C * s.C : 0)),
        transform(pooler_bias + (s.relations > 0 ? s.C : 0)),
        transform_bias(transform + s.C * s.C),
        transform_gamma(transform_bias + s.C),
        transform_beta(transform_gamma + s.C),
        decoder_bias(transform_beta + s.C),
        relation(decoder_bias + s.V),
        relation_bias(relation + (s.relations > 0 ? plan::kRelations * s.C : 0)),
        end(relation_bias + (s.relations > 0 ? plan::kRelations : 0)) {}
  int64_t word, position, type, gamma, beta;
  int64_t pooler, pooler_bias, transform, transform_bias, transform_gamma, transform_beta, decoder_bias,
      relation, relation_bias, end;
};

// Offsets inside a layer. Query, key and value lie side by side, and so do their biases: one product.
struct BertLayerOffsets {
  explicit BertLayerOffsets(const BertSizes& s)
      : qkv(0),
        qkv_bias(3 * s.C * s.C),
        out(qkv_bias + 3 * s.C),
        out_bias(out + s.C * s.C),
        gamma1(out_bias + s.C),
        beta1(gamma1 + s.C),
        up(beta1 + s.C),
        up_bias(up + s.F * s.C),
        down(up_bias + s.F),
        down_bias(down + s.C * s.F),
        gamma2(down_bias + s.C),
        beta2(gamma2 + s.C),
        end(beta2 + s.C) {}
  int64_t qkv, qkv_bias, out, out_bias, gamma1, beta1, up, up_bias, down, down_bias, gamma2, beta2, end;
};

}  // namespace shardrun::model
