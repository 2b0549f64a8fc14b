#include "runtime/contract/computing_thread.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "plugins/common/cpu_slices.h"

using namespace shardrun;
using std::chrono::milliseconds;

namespace {

// The slices of a thread that computes, of one that it starts, and of one that asks for short ones.
struct Slices {
  std::chrono::nanoseconds computing{}, started{}, moving{};
};

Slices slices_of_a_rank() {
  Slices seen;
  std::thread([&] {
    contract::ask_for_long_slices();
    seen.computing = common::slices();
    std::thread([&] {
      seen.started = common::slices();
      common::ask_for_slices(std::chrono::microseconds(100));
      seen.moving = common::slices();
    }).join();
  }).join();
  return seen;
}

}  // namespace

TEST_CASE(
    "computing thread: it and its helpers have slices of 20 ms, and one that moves messages short ones") {
  const bool kernel_tells = common::slices().count() > 0;  // Linux 6.12 and newer

  const Slices seen = slices_of_a_rank();

  CHECK_EQ(seen.computing, kernel_tells ? milliseconds(20) : milliseconds(0));
  CHECK_EQ(seen.started, seen.computing);
  CHECK_EQ(seen.moving, kernel_tells ? std::chrono::microseconds(100) : milliseconds(0));
}
