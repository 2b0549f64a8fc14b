// Which algorithm a matrix product of some shape uses on one kind of GPU, and the text that keeps it between runs.
//
//   shardrun products 1
//   made for <cublasLt's version> on <name of the GPU>
//   <shape> = <eight words in hex: cublasLt's own record of an algorithm>
//
// This code is pure and needs no CUDA.
//
// Thread rule: thread-compatible.
// Tests: tests/unit/kernels/cuda_logic_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace shardrun::kernels::cuda {

struct ProductAlgorithm {
  std::array<uint64_t, 8> words{};
  friend bool operator==(const ProductAlgorithm&, const ProductAlgorithm&) = default;
};

class ProductTable {
 public:
  // `maker` is "<cublasLt's version> on <name of the GPU>".
  explicit ProductTable(std::string maker) : maker_(std::move(maker)) {}

  // Returns null for a shape that is not known.
  const ProductAlgorithm* find(const std::string& shape) const;
  void set(const std::string& shape, const ProductAlgorithm& algorithm) { algorithms_[shape] = algorithm; }
  size_t size() const { return algorithms_.size(); }

  // Returns the entries sorted by shape: equal tables have equal texts.
  std::string text() const;
  // Adds the text's entries. kCorrupt: this is no such text; kRefused: the maker is another. Changes nothing then.
  base::Result<void> load(std::string_view text);

 private:
  std::string maker_;
  std::map<std::string, ProductAlgorithm> algorithms_;
};

}  // namespace shardrun::kernels::cuda
