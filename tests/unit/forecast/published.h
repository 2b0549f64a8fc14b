// Published runs: what ran where, the rate that somebody measured, and who says so (published/, a file for each publication).
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/forecast/step.h"

namespace shardrun::tests {

// What the users of a stack could choose.
struct Offered {
  std::string shard_degrees;  // "any", "node or all", "one or all", "one"
  bool tensor = false, activation_offload = false;

  bool includes(const launcher::Layout& layout, int per_node) const;
};

struct Row {
  std::string id, publication;
  std::string edition;  // of a publication that changed what ran; empty: it has one
  launcher::Machine machine;
  launcher::ModelShape model;
  launcher::Layout layout;
  launcher::Traits traits;
  Offered offered;
  double rate = 0.0;    // tokens/s of one accelerator, as published
  double memory = 0.0;  // bytes of the fullest accelerator, as published; 0: nothing is said
};

// Returns the rows of all publications, by the names of their files.
std::vector<Row> published_rows();

}  // namespace shardrun::tests
