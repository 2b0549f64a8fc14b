// Runs 20 steps of a small Llama and a small BERT against PyTorch's losses: peers/curves.txt, written by
// tests/peers/curves.py, which says how weights and batches are made.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/unit/model/one_rank.h"

using namespace shardrun;
using namespace shardrun::tests;

namespace {

std::vector<double> peer_losses(const std::string& name) {
  std::ifstream file(SOURCE_DIR "/tests/unit/model/peers/curves.txt");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first != name) continue;
    std::vector<double> losses;
    for (double loss = 0.0; words >> loss;) losses.push_back(loss);
    return losses;
  }
  return {};
}

template <typename MakeBatch>
void check_curve(OneRank trainer, const std::string& name, const MakeBatch& make_batch, double tolerance) {
  const std::vector<double> theirs = peer_losses(name);
  REQUIRE_EQ(theirs.size(), kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const OwnedBatch batch = make_batch(step);
    const double ours = trainer.step(step, batch.view()), peer = theirs[static_cast<size_t>(step)];
    CAPTURE(name);
    CAPTURE(step);
    CAPTURE(ours);
    CAPTURE(peer);
    CHECK_LT(std::abs(ours - peer) / peer, tolerance);
  }
}

OneRank llama(kernels::DType compute) {
  return {model::Llama::create({2, 48, 6, 2, 88, kVocab}, {compute, kBatch, kLength}).value(), compute};
}
OneRank bert(kernels::DType compute) {
  return {model::Bert::create({2, 48, 6, 100, kVocab, 40}, {compute, kBatch, kLength}).value(), compute};
}

}  // namespace

TEST_CASE("curves: 20 steps of a Llama in fp32 follow PyTorch within 1e-5") {
  check_curve(llama(kernels::DType::kFp32), "llama.fp32", llama_batch, 1e-5);
}

TEST_CASE("curves: 20 steps of a Llama in bf16 follow PyTorch within 2e-3") {
  check_curve(llama(kernels::DType::kBf16), "llama.bf16", llama_batch, 2e-3);
}

TEST_CASE("curves: 20 steps of a BERT in fp32 follow PyTorch within 1e-5") {
  check_curve(bert(kernels::DType::kFp32), "bert.fp32", bert_batch, 1e-5);
}

TEST_CASE("curves: 20 steps of a BERT in bf16 follow PyTorch within 2e-3") {
  check_curve(bert(kernels::DType::kBf16), "bert.bf16", bert_batch, 2e-3);
}
