#include "runtime/base/result.h"

#include <doctest/doctest.h>

using namespace shardrun::base;

TEST_CASE("result: context is put before the cause and keeps its code") {
  Error inner(Code::kTimeout, "rank 3 did not answer");

  Error outer = inner.context("barrier");

  CHECK_EQ(outer.to_string(), "barrier: rank 3 did not answer");
  CHECK(outer.code() == Code::kTimeout);
}

TEST_CASE("result: context keeps the ranks that an error is about") {
  const Error inner = Error(Code::kPeerLost, "lost").about({3, 5});

  CHECK(inner.context("barrier").ranks() == std::vector<int>{3, 5});
  CHECK(Error(Code::kIo, "read").ranks().empty());
}
