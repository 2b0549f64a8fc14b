// The nccl plugin where something does not come about: ranks that stay away, errors of NCCL's, aborts.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/trainer/comm/plugin_communicator.h"
#include "tests/world/comm/nccl_ranks.h"

using namespace shardrun;
using namespace shardrun::nccl_test;
using namespace std::chrono_literals;

TEST_CASE(
    "nccl: a rank that does not come is a timeout that names who may be missing, and the rest is aborted") {
  Fakes fakes;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        if (rank == 1) return;
        auto world = opened(session.communicator(0));
        const auto begin = Clock::now();
        CHECK(finish(*world, world->barrier()) ==
              "timeout|connecting channel 0 within 300 ms: rank 1 (node n1) did not answer in time");
        CHECK(Clock::now() - begin < 3s);
        const auto again = world->barrier();
        REQUIRE_FALSE(again);
        CHECK(text_of(again.error()).find("timeout|connecting channel 0") == 0);
        CHECK(again.error().ranks() == std::vector<int>{1});
      },
      300ms);
  CHECK(fakes.nccl->aborts == 1);
}

TEST_CASE(
    "nccl: a communicator that cannot be made is reported with the name of the result and the last error") {
  Fakes fakes;
  fakes.nccl->init_error_rank = 0;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        auto world = opened(session.communicator(0));
        const std::string error = finish(*world, world->barrier());
        if (rank == 0) {
          CHECK(error ==
                "io|connecting on channel 0 with rank 1 (node n1): ncclSystemError (unhandled system error "
                "(run with "
                "NCCL_DEBUG=INFO for details)): fake: no socket interface found");
        } else {
          CHECK(error.find("timeout|") == 0);
        }
      },
      500ms);
}

TEST_CASE("nccl: an error that comes to light between operations ends all channels of its rank") {
  Fakes fakes;
  fakes.nccl->remote_error_rank = 0;
  run_ranks(
      3,
      [&](int rank, comm::PluginSession& session) {
        auto world = opened(session.communicator(0));
        auto other = opened(session.communicator(1));
        if (rank != 0) {
          while (finish(*world, world->barrier()).empty()) {
          }
          return;
        }
        std::string error;
        for (int i = 0; i < 10 && error.empty(); ++i) error = finish(*world, world->barrier());
        CHECK(error ==
              "peer_lost|barrier on channel 0 with one of rank 1 (node n1), rank 2 (node n0): "
              "ncclRemoteError (remote "
              "process exited or there was a network error): fake: connection closed by remote peer");
        CHECK(finish(*other, other->barrier()) == error);
      },
      700ms);
}

TEST_CASE("nccl: abort from another thread ends a wait at once, with its reason") {
  Fakes fakes;
  run_ranks(2, [&](int rank, comm::PluginSession& session) {
    auto world = opened(session.communicator(0));
    CHECK(finish(*world, world->barrier()) == "");
    if (rank == 1) {
      std::this_thread::sleep_for(300ms);
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(100ms);
      world->abort("the user pressed a key");
    });
    const auto begin = Clock::now();
    CHECK(finish(*world, world->barrier()) == "cancelled|rank 0 (node n0) aborted: the user pressed a key");
    CHECK(Clock::now() - begin < 3s);
    other.join();
  });
}

TEST_CASE("nccl: ranks that break the order of operations time out, for NCCL does not notice") {
  Fakes fakes;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        auto world = opened(session.communicator(0));
        CHECK(finish(*world, world->barrier()) == "");
        std::vector<float> some(8), all(16);
        const std::string error =
            rank == 0 ? finish(*world, world->all_reduce(std::span(some)))
                      : finish(*world, world->all_gather(std::as_bytes(std::span(some)),
                                                         std::as_writable_bytes(std::span(all))));
        CHECK(error ==
              fmt::format("timeout|{} #2 on channel 0 is not complete after 400 ms: rank {} (node n{}) did "
                          "not take part, or the GPU is late",
                          rank == 0 ? "all_reduce" : "all_gather", 1 - rank, 1 - rank));
      },
      400ms);
}

TEST_CASE("nccl: an operation that NCCL never gets onto the stream is a timeout too") {
  Fakes fakes;
  fakes.nccl->stalling_rank = 0;
  run_ranks(
      1,
      [&](int, comm::PluginSession& session) {
        auto world = opened(session.communicator(0));
        std::vector<float> buffer(3);
        auto first = world->all_reduce(std::span(buffer));
        REQUIRE(first);
        CHECK(finish(*world, world->all_reduce(std::span(buffer)))
                  .find("timeout|all_reduce #1 on channel 0 is not complete after 300 ms: nobody else did") ==
              0);
      },
      300ms);
}

TEST_CASE("nccl: what the stream waits for in vain ends the next call, and frees the stream") {
  Fakes fakes;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        Stream stream(fakes);
        std::vector<float> buffer(100);
        auto world = opened(session.device_communicator(0, stream.handle()));
        CHECK(finish(*world, world->barrier()) == "");
        if (rank == 1) {
          std::this_thread::sleep_for(1s);
          stream.synchronize();
          return;
        }
        auto pending = world->all_reduce(std::span(buffer));
        REQUIRE(pending);
        const auto begin = Clock::now();
        CHECK(world->wait(*pending));
        CHECK(Clock::now() - begin < 200ms);
        stream.synchronize();  // only the watch lets it go
        CHECK(Clock::now() - begin > 250ms);
        CHECK(
            finish(*world, world->barrier())
                .find("timeout|all_reduce #2 on channel 0 is not complete after 300 ms: rank 1 (node n1)") ==
            0);
      },
      300ms);
}

TEST_CASE("nccl: a failure aborts all communicators at once, for one may wait for another's kernel") {
  Fakes fakes;
  fakes.nccl->aborts_wait = true;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        Stream stream(fakes);
        std::vector<float> buffer(100);
        auto first = opened(session.communicator(0));
        auto second = opened(session.device_communicator(1, stream.handle()));
        CHECK(finish(*first, first->barrier()) == "");
        if (rank == 1) {
          std::this_thread::sleep_for(1s);
          return;
        }
        auto pending = second->all_reduce(std::span(buffer));
        REQUIRE(pending);
        const auto begin = Clock::now();
        CHECK(finish(*first, first->barrier()).find("timeout|") == 0);
        stream.synchronize();
        CHECK(Clock::now() - begin < 2s);
      },
      300ms);
}

TEST_CASE("nccl: a channel that is closed with an operation in flight takes all of its rank's with it") {
  Fakes fakes;
  run_ranks(
      2,
      [&](int rank, comm::PluginSession& session) {
        auto a = opened(session.communicator(0)), b = opened(session.communicator(1));
        CHECK(finish(*b, b->barrier()) == "");
        if (rank == 1) return;
        std::vector<float> buffer(10);
        REQUIRE(a->all_reduce(std::span(buffer)));
        a.reset();
        CHECK(finish(*b, b->barrier()) == "peer_lost|rank 0 (node n0) left with all_reduce #1 in flight");
      },
      500ms);
}
