#include "runtime/trainer/shard/tensor_slice.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace shardrun;
using namespace shardrun::shard;

namespace {

// Returns what a slice of the tensor 0, 1, 2, … holds.
std::vector<float> values_of(const TensorSlice& slice, int64_t columns) {
  std::vector<float> values;
  for (int64_t row = slice.row_begin; row < slice.row_end(); ++row) {
    for (int64_t column = slice.column_begin; column < slice.column_end(); ++column) {
      values.push_back(static_cast<float>(row * columns + column));
    }
  }
  return values;
}

// Copies between every pair of parts, cut at every place, and compares with what the target should hold.
void check_all_cuts(const TensorSlice& from, const TensorSlice& to, int64_t columns) {
  const std::vector<float> source = values_of(from, columns), wanted = values_of(to, columns);
  for (int64_t cut = 0; cut <= from.elements(); ++cut) {
    for (int64_t begin = 0; begin < to.elements(); ++begin) {
      const plan::ElementRange target{begin, to.elements() - begin / 2};
      if (target.count() <= 0) continue;
      std::vector<float> out(static_cast<size_t>(target.count()), -1.0F);
      int64_t copied = 0;
      for (const plan::ElementRange& part :
           {plan::ElementRange{0, cut}, plan::ElementRange{cut, from.elements()}}) {
        const auto piece = std::span<const float>(source).subspan(static_cast<size_t>(part.begin),
                                                                  static_cast<size_t>(part.count()));
        copied += copy_overlap({from, part, piece}, {to, target, out}, from);
      }
      int64_t expected = 0;
      for (int64_t i = 0; i < target.count(); ++i) {
        const auto value = static_cast<int64_t>(wanted[static_cast<size_t>(target.begin + i)]);
        const int64_t row = value / columns, column = value % columns;
        const bool held = row >= from.row_begin && row < from.row_end() && column >= from.column_begin &&
                          column < from.column_end();
        expected += held ? 1 : 0;
        REQUIRE(out[static_cast<size_t>(i)] == (held ? static_cast<float>(value) : -1.0F));
      }
      REQUIRE(copied == expected);
    }
  }
}

}  // namespace

TEST_CASE("tensor slice: along dimension 0 it is rows, along dimension 1 columns, and -1 is all") {
  const std::vector<int64_t> shape{4, 6, 2};

  CHECK(make_slice(shape, 0, 1, 2) == TensorSlice{1, 2, 0, 12});
  CHECK(make_slice(shape, 1, 3, 3) == TensorSlice{0, 4, 6, 6});
  CHECK(make_slice(shape, -1, 0, 0) == TensorSlice{0, 4, 0, 12});
  CHECK(make_slice(std::vector<int64_t>{5}, 0, 2, 3) == TensorSlice{2, 3, 0, 1});
  CHECK(whole_slice({}) == TensorSlice{0, 1, 0, 1});
}

TEST_CASE("tensor slice: rows, columns and whole tensors are copied into each other, however both are cut") {
  const std::vector<int64_t> shape{5, 6};
  const std::vector<TensorSlice> slices{whole_slice(shape), make_slice(shape, 0, 0, 2),
                                        make_slice(shape, 0, 2, 3), make_slice(shape, 1, 0, 3),
                                        make_slice(shape, 1, 2, 4)};
  for (const TensorSlice& from : slices) {
    for (const TensorSlice& to : slices) check_all_cuts(from, to, 6);
  }
}

TEST_CASE("tensor slice: a vector's slices are runs") {
  const std::vector<int64_t> shape{9};
  check_all_cuts(whole_slice(shape), make_slice(shape, 0, 4, 5), 1);
  check_all_cuts(make_slice(shape, 0, 0, 5), make_slice(shape, 0, 3, 6), 1);
}

TEST_CASE("tensor slice: nothing outside of `only` is copied") {
  const std::vector<int64_t> shape{3, 2};
  const TensorSlice all = whole_slice(shape);
  const std::vector<float> source = values_of(all, 2);
  std::vector<float> out(6, -1.0F);

  const int64_t copied = copy_overlap({all, {0, 6}, source}, {all, {0, 6}, out}, make_slice(shape, 0, 1, 1));

  CHECK(copied == 2);
  CHECK(out == std::vector<float>{-1, -1, 2, 3, -1, -1});
}
