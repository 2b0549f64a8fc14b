// Symmetric, positive systems of a few hundred unknowns.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace shardrun::launcher {

// A square matrix, row by row.
class Square {
 public:
  explicit Square(size_t size) : size_(size), values_(size * size) {}
  size_t size() const { return size_; }
  double& at(size_t row, size_t column) { return values_[row * size_ + column]; }
  double at(size_t row, size_t column) const { return values_[row * size_ + column]; }

 private:
  size_t size_;
  std::vector<double> values_;
};

// Factors a symmetric, positive matrix into lower · lowerᵀ (Cholesky).
inline Square lower_of(Square matrix) {
  for (size_t i = 0; i < matrix.size(); ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double left = matrix.at(i, j);
      for (size_t k = 0; k < j; ++k) left -= matrix.at(i, k) * matrix.at(j, k);
      matrix.at(i, j) = i == j ? std::sqrt(left) : left / matrix.at(j, j);
    }
  }
  return matrix;
}

// Solves lower · lowerᵀ · x = right.
inline std::vector<double> solve(const Square& lower, std::vector<double> right) {
  for (size_t i = 0; i < right.size(); ++i) {
    for (size_t k = 0; k < i; ++k) right[i] -= lower.at(i, k) * right[k];
    right[i] /= lower.at(i, i);
  }
  for (size_t i = right.size(); i-- > 0;) {
    for (size_t k = i + 1; k < right.size(); ++k) right[i] -= lower.at(k, i) * right[k];
    right[i] /= lower.at(i, i);
  }
  return right;
}

}  // namespace shardrun::launcher
