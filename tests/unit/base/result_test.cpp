#include "runtime/base/result.h"

#include <doctest/doctest.h>

using namespace shardrun::base;

TEST_CASE("result: context is put before the cause and keeps its code") {
  Error inner(Code::kTimeout, "rank 3 did not answer");

  Error outer = inner.context("barrier");

  CHECK_EQ(outer.to_string(), "barrier: rank 3 did not answer");
  CHECK(outer.code() == Code::kTimeout);
}
