// WeightFiles: the tensors of a model in safetensors files, opened and checked, read piece by piece.
//
// Thread rule: thread-compatible; one process of a job opens them (weights/load_weights.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/weights/safetensors.h"

namespace shardrun::weights {

class WeightFiles {
 public:
  // `path` is a .safetensors file, or a folder with model.safetensors.index.json and the files that it names, or
  // with model.safetensors. Reads only headers. kNotFound, kIo, or kCorrupt naming the file and what is wrong with
  // it.
  static Result<WeightFiles> open(const std::string& path);

  // Returns null when there is no such tensor.
  const TensorEntry* find(const std::string& name) const;

  // Succeeds when exactly these tensors are there, in their full shapes and a type that can be read; otherwise
  // kInvalid names the first that are missing, unexpected or of another shape. Two kinds are not unexpected: a
  // second copy, bit for bit, of a tensor that the model ties (lm_head.weight beside the embedding), and buffers
  // that models compute themselves (position_ids, inv_freq).
  Result<void> check(std::span<const model::BlockLayout> blocks) const;

  // Reads elements [first, first + out.size()/width) of a tensor that find() gave, as the file has them. kIo,
  // kCorrupt.
  Result<void> read(const TensorEntry& tensor, int64_t first, std::span<std::byte> out) const;
  // Reads a block of a model that check() takes, in fp32; `seen` gets each tensor's bytes as the files have them. Errors as read().
  using Seen = std::function<void(std::span<const std::byte>)>;
  Result<void> read_block(const model::BlockLayout& block, std::span<float> values,
                          const Seen& seen = {}) const;

 private:
  struct File {
    std::string path;
    base::UniqueFd fd;
  };
  struct Tensor {
    TensorEntry entry;
    size_t file;
  };
  Result<void> add_file(const std::string& path);
  Result<bool> same_elements(const TensorEntry& a, const TensorEntry& b) const;

  std::string path_;
  std::vector<File> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace shardrun::weights
