// Staged communicators over ranks that are threads, on devices whose streams dawdle.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/plan/communication.h"
#include "runtime/trainer/comm/staged_communicator.h"
#include "tests/fakes/scripted_device.h"
#include "tests/fakes/thread_world.h"
#include "tests/process/comm/peer_checks.h"

using namespace shardrun;
using namespace std::chrono_literals;
using fakes::DeviceScript;
using fakes::ScriptedDevice;
using fakes::ThreadWorld;

namespace {

std::unique_ptr<comm::Communicator> staged(ScriptedDevice& device, std::unique_ptr<comm::Communicator> host,
                                           int64_t piece_bytes = 4096,
                                           std::chrono::milliseconds timeout = 10s) {
  auto made = comm::make_staged(std::move(host), device.link(), {piece_bytes, timeout});
  REQUIRE(made);
  return std::move(*made);
}

// This is for checks that know only the host: the compute stream writes each operation's input and reads its
// result, without a pause in between, so that only the communicator's own order keeps the bytes right.
class SeenFromHost final : public comm::Communicator {
 public:
  SeenFromHost(ScriptedDevice& device, comm::Communicator& inner) : device_(device), inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  comm::Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    Buffers& b = upload(mine, all);
    const bool inside = mine.data() >= all.data() && mine.data() + mine.size() <= all.data() + all.size();
    const std::span<const std::byte> from =
        inside ? std::span<const std::byte>(b.out).subspan(static_cast<size_t>(mine.data() - all.data()),
                                                           mine.size())
               : std::span<const std::byte>(b.in);
    return note(inner_.all_gather(from, b.out));
  }
  comm::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    Buffers& b = upload(std::as_bytes(full), std::as_writable_bytes(mine));
    return note(inner_.reduce_scatter({reinterpret_cast<const float*>(b.in.data()), full.size()},
                                      {reinterpret_cast<float*>(b.out.data()), mine.size()}));
  }
  comm::Result<comm::Pending> reduce_scatter(std::span<const comm::Bf16> full,
                                             std::span<comm::Bf16> mine) override {
    Buffers& b = upload(std::as_bytes(full), std::as_writable_bytes(mine));
    return note(inner_.reduce_scatter({reinterpret_cast<const comm::Bf16*>(b.in.data()), full.size()},
                                      {reinterpret_cast<comm::Bf16*>(b.out.data()), mine.size()}));
  }
  comm::Result<comm::Pending> all_reduce(std::span<comm::Bf16> buffer) override {
    Buffers& b = upload({}, std::as_writable_bytes(buffer));
    return note(inner_.all_reduce(std::span(reinterpret_cast<comm::Bf16*>(b.out.data()), buffer.size())));
  }
  comm::Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    Buffers& b = upload({}, std::as_writable_bytes(buffer));
    return note(inner_.all_reduce(std::span(reinterpret_cast<float*>(b.out.data()), buffer.size())));
  }
  comm::Result<comm::Pending> all_reduce(std::span<double> buffer) override {
    Buffers& b = upload({}, std::as_writable_bytes(buffer));
    return note(inner_.all_reduce(std::span(reinterpret_cast<double*>(b.out.data()), buffer.size())));
  }
  comm::Result<comm::Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return note(inner_.broadcast(upload({}, buffer).out, root));
  }
  comm::Result<comm::Pending> barrier() override { return note(inner_.barrier(), upload({}, {})); }

  comm::Result<void> wait(comm::Pending pending) override {
    RETURN_IF_ERROR(inner_.wait(pending));
    Buffers& b = pending_.at(pending.ticket);
    device_.compute([&b] {
      if (!b.host_out.empty()) std::memcpy(b.host_out.data(), b.out.data(), b.out.size());
    });
    device_.synchronize();
    pending_.erase(pending.ticket);
    return {};
  }

 private:
  struct Buffers {
    std::vector<std::byte> host_in, host_before, in, out;
    std::span<std::byte> host_out;
  };

  Buffers& upload(std::span<const std::byte> in, std::span<std::byte> out) {
    auto made = std::make_unique<Buffers>();
    made->host_in.assign(in.begin(), in.end());
    made->host_before.assign(out.begin(), out.end());
    made->in.resize(in.size(), std::byte{0xa5});
    made->out.resize(out.size(), std::byte{0xa5});
    made->host_out = out;
    last_ = std::move(made);
    device_.compute([b = last_.get()] {
      std::copy(b->host_in.begin(), b->host_in.end(), b->in.begin());
      std::copy(b->host_before.begin(), b->host_before.end(), b->out.begin());
    });
    return *last_;
  }
  comm::Result<comm::Pending> note(comm::Result<comm::Pending> pending) {
    return note(std::move(pending), *last_);
  }
  comm::Result<comm::Pending> note(comm::Result<comm::Pending> pending, Buffers&) {
    if (pending) {
      owned_.push_back(std::move(last_));
      pending_.emplace(pending->ticket, *owned_.back());
    }
    return pending;
  }

  ScriptedDevice& device_;
  comm::Communicator& inner_;
  std::unique_ptr<Buffers> last_;
  std::vector<std::unique_ptr<Buffers>> owned_;
  std::map<uint64_t, Buffers&> pending_;
};

// Checks everything that a communicator promises, with every rank's device following `script`.
std::string first_wrong(int ranks, const DeviceScript& script, int64_t piece_bytes) {
  ThreadWorld world(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceScript own = script;
      own.seed += static_cast<uint64_t>(rank);
      ScriptedDevice device(own);
      auto gathers = staged(device, world.communicator(rank, 0), piece_bytes);
      auto sums = staged(device, world.communicator(rank, 1), piece_bytes);
      SeenFromHost a(device, *gathers), b(device, *sums);
      std::string& error = errors[static_cast<size_t>(rank)];
      error = tests::check_collectives(a);
      if (error.empty()) error = tests::check_overlap(a, b);
      gathers.reset();  // copies may still be under way to the buffers of a and b
      sums.reset();
      device.synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return {};
}

std::string message_of(const base::Result<void>& result) {
  return result ? "" : fmt::format("{}|{}", base::code_name(result.error().code()), result.error().message());
}

base::Result<void> finish(comm::Communicator& communicator, const base::Result<comm::Pending>& pending) {
  if (!pending) return pending.error();
  return communicator.wait(*pending);
}

}  // namespace

TEST_CASE("staged: every collective gives the serial sum's bits, in one piece and cut into many") {
  CHECK(first_wrong(1, {}, int64_t{1} << 20) == "");
  CHECK(first_wrong(2, {}, int64_t{1} << 20) == "");
  CHECK(first_wrong(4, {}, int64_t{1} << 20) == "");
  CHECK(first_wrong(3, {}, 32768) == "");
}

TEST_CASE("staged: no timing of the device's streams changes a bit") {
  for (const auto& dawdles : {std::array{300us, 0us, 0us}, std::array{0us, 300us, 0us},
                              std::array{0us, 0us, 300us}, std::array{100us, 100us, 100us}}) {
    CHECK(first_wrong(2, {.seed = 11, .dawdles = dawdles}, 65536) == "");
    CHECK(first_wrong(3, {.seed = 12, .dawdles = dawdles}, 65536) == "");
  }
}

#ifndef __SANITIZE_THREAD__  // because what it does wrong on purpose is a race
TEST_CASE("staged: the scripted device shows a missing order as wrong bytes") {
  CHECK(first_wrong(2, {.dawdles = {2000us, 0us, 0us}, .ignores_marks = true}, 65536).find("wrong") !=
        std::string::npos);
}
#endif

TEST_CASE("staged: an operation goes on while its rank computes, and does not wait for later work") {
  ThreadWorld world(2);
  std::atomic<bool> computed = false;
  world.run([&](int rank, std::span<comm::Communicator* const>) {
    ScriptedDevice device({});
    auto communicator = staged(device, world.communicator(rank, 0));
    std::vector<float> buffer(3000, static_cast<float>(rank + 1));
    auto pending = communicator->all_reduce(std::span(buffer));
    REQUIRE(pending);
    if (rank == 0) {
      device.compute([&] {
        std::this_thread::sleep_for(300ms);
        computed = true;
      });
    }
    CHECK(communicator->wait(*pending));
    if (rank == 0)
      CHECK_FALSE(computed);  // the sum is there before the work that came after the call is done
    device.synchronize();
    CHECK(buffer == std::vector<float>(3000, 3.0f));
  });
}

TEST_CASE("staged: a rank takes exactly the pinned memory that was planned, and none alone") {
  ScriptedDevice device({});
  ThreadWorld three(3), one(1);
  auto among_three = staged(device, three.communicator(0, 0), 4096);
  CHECK(device.pinned_bytes() == plan::staging_bytes(3, 4096));
  CHECK(plan::staging_bytes(3, 4096) == 32768);
  among_three.reset();
  auto alone = staged(device, one.communicator(0, 0), 4096);
  CHECK(device.pinned_bytes() == 0);
}

TEST_CASE("staged: pieces are planned to fit 16 MiB, the largest part, and no fewer than 64 KiB") {
  CHECK(plan::staging_piece_bytes(3, int64_t{1} << 40) == 4 << 20);
  CHECK(plan::staging_piece_bytes(3, 1000) == 1024);
  CHECK(plan::staging_piece_bytes(3, 0) == 256);
  CHECK(plan::staging_piece_bytes(4095, int64_t{1} << 40) == 64 << 10);
}

TEST_CASE("staged: a copy that fails ends the operation and all after it with the driver's words") {
  ThreadWorld world(2);
  world.run([&](int rank, std::span<comm::Communicator* const>) {
    std::vector<float> buffer(100);
    ScriptedDevice device({.failing_copy = rank == 0 ? 4 : -1});
    auto communicator = staged(device, world.communicator(rank, 0));
    std::string first;
    for (int i = 0; i < 4 && first.empty(); ++i)
      first = message_of(finish(*communicator, communicator->all_reduce(std::span(buffer))));
    if (rank == 1) return;  // closing aborts the others, if they still wait for something
    CHECK(first == "io|copy: a scripted fault");
    CHECK(message_of(finish(*communicator, communicator->barrier())) == first);
    world.communicator(0, 1)->abort("rank 0 is done");
  });
}

TEST_CASE("staged: a device that never comes to the operation is a timeout of its own") {
  ThreadWorld world(2);
  ScriptedDevice device({});
  std::atomic<bool> let_go = false;
  device.compute([&] {
    while (!let_go) std::this_thread::sleep_for(1ms);
  });
  std::vector<float> buffer(10);
  auto communicator = staged(device, world.communicator(0, 0), 4096, 100ms);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(message_of(finish(*communicator, communicator->all_reduce(std::span(buffer)))) ==
        "timeout|operation #1: the device has not come to it within 100 ms");
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  let_go = true;
}

TEST_CASE("staged: a silent peer is named by the host communicator's words") {
  ThreadWorld world(2, {.timeout = 200ms});
  world.silence(1);
  world.run([&](int rank, std::span<comm::Communicator* const>) {
    ScriptedDevice device({});
    auto communicator = staged(device, world.communicator(rank, 0));
    CHECK(message_of(finish(*communicator, communicator->barrier()))
              .find("no answer from rank 1 within 200 ms") != std::string::npos);
  });
}

TEST_CASE("staged: closing one with an operation in flight returns at once and tells the others") {
  ThreadWorld world(2, {.timeout = 60s});
  std::vector<float> a(10), b(10);
  ScriptedDevice device({});
  auto mine = staged(device, world.communicator(0, 0));
  auto theirs = staged(device, world.communicator(1, 1));
  REQUIRE(mine->all_reduce(std::span(a)));
  auto pending = theirs->all_reduce(std::span(b));
  REQUIRE(pending);
  const auto begin = std::chrono::steady_clock::now();
  mine.reset();
  CHECK(message_of(theirs->wait(*pending)) ==
        "cancelled|rank 0: a communicator was closed with operations in flight");
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}
