// Shared by the tests of training on a GPU: a small Llama or BERT through train::Session, on the CPU or on GPU 0.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/trainer/train/products.h"
#include "runtime/trainer/train/session.h"
#include "tests/support/folder.h"

namespace gpu_training {

using namespace shardrun;

enum class Where { kCpu, kGpu };

struct Run {
  Where where = Where::kGpu;
  kernels::DType compute = kernels::DType::kFp32;
  int64_t steps = 20;
  int ranks = 1;            // ranks are threads; on a GPU all share it
  int tensor_parallel = 1;  // 1, or all ranks
  std::string checkpoints{};
  int64_t save_every = 0;
  model::Checkpointing checkpointing = model::Checkpointing::kNone;
  bool lamb = false;
  bool bert = false;
  bool fp8 = false;  // whether fp8 is used beside bf16
  double learning_rate = 5e-3;
  int layers = 2;
  bool moments_on_host = false, activations_on_host = false;
  std::string products{};  // a cache of tables of matrix products; empty: no table is settled
  bool tunes = true;       // whether products are tuned, with `products`
  bool graphs = false;     // whether a layer's ops are started as one
  train::ProductsReport* report = nullptr;  // rank 0's; may be null
};

// Turns a Llama's options into a BERT's, on documents of every length.
void take_bert(const tests::Folder& folder, train::SessionOptions& options, int layers = 2);
// Returns what `run` says, with the model and the data that all runs share: files in `folder`.
train::SessionOptions options_of(const tests::Folder& folder, const Run& run);
// Returns rank 0's losses of the steps that were run; a failed run fails the test.
std::vector<double> train(const tests::Folder& folder, const Run& run);
// Returns the shard files of a checkpoint, by name.
std::map<std::string, std::string> shard_files(const std::string& checkpoint);
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gpu_training
