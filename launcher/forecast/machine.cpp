#include "launcher/forecast/machine.h"

namespace shardrun::launcher {

double ModelShape::layer_parameters() const {
  const double d = hidden;
  return 2.0 * d * d + 2.0 * d * kv_width + static_cast<double>(ffn_matrices) * d * ffn + 2.0 * d;
}

double ModelShape::flops_per_token(int sequence_length) const {
  const double attention = (causal ? 6.0 : 12.0) * layers * hidden * static_cast<double>(sequence_length);
  return 6.0 * (layers * layer_parameters() + table_parameters()) + attention;
}

ModelShape shape_of(const spec::ModelSpec& model, const std::string& trainer) {
  ModelShape shape;
  shape.layers = model.layers;
  shape.hidden = model.hidden;
  shape.kv_width = model.hidden / model.heads * model.kv_heads;
  shape.ffn = model.ffn;
  shape.vocab = model.vocab;
  const bool bert = trainer == "bert";
  shape.ffn_matrices = bert ? 2 : 3;
  shape.tied = bert || model.tied_embeddings;
  shape.causal = !bert;
  return shape;
}

}  // namespace shardrun::launcher
