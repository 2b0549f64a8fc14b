#include "tests/fakes/thread_world.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

using namespace shardrun;
using Channels = std::span<comm::Communicator* const>;

TEST_CASE(
    "thread world: an all-gather puts every rank's bytes in rank order, also from the caller's own slot") {
  fakes::ThreadWorld world(3);
  std::vector<std::vector<int>> all(3, std::vector<int>(6, -1));

  world.run([&](int rank, Channels channels) {
    std::vector<int>& mine = all[rank];
    mine[2 * rank] = 10 * rank;
    mine[2 * rank + 1] = 10 * rank + 1;
    const auto slot = std::as_bytes(std::span(mine)).subspan(rank * 8, 8);
    auto pending = channels[0]->all_gather(slot, std::as_writable_bytes(std::span(mine)));
    (void)channels[0]->wait(*pending);
  });

  for (const auto& row : all) CHECK(row == std::vector<int>{0, 1, 10, 11, 20, 21});
}

TEST_CASE(
    "thread world: an all-to-all brings each rank the part that every other has for it, and tells sizes that "
    "differ") {
  fakes::ThreadWorld world(3);
  std::vector<std::vector<char>> received(3, std::vector<char>(6, '.'));
  std::array<std::string, 3> errors;

  world.run([&](int rank, Channels channels) {
    // Rank r sends r letters to rank 0, one to rank 1 and two to rank 2.
    const std::vector<char> letters(static_cast<size_t>(rank) + 3, static_cast<char>('a' + rank));
    const std::vector<int64_t> sends = {rank, 1, 2};
    std::vector<int64_t> receives = {rank, rank, rank};
    if (rank == 0) receives = {0, 1, 2};
    const auto pending =
        channels[0]->all_to_all({std::as_bytes(std::span(letters)), sends,
                                 std::as_writable_bytes(std::span(received[rank])), receives});
    (void)channels[0]->wait(*pending);
    receives[2] += rank == 1 ? 1 : 0;
    const auto wrong = channels[0]->all_to_all({std::as_bytes(std::span(letters)), sends,
                                                std::as_writable_bytes(std::span(received[rank])), receives});
    if (const auto done = channels[0]->wait(*wrong); !done) errors[rank] = done.error().to_string();
  });

  CHECK(std::string(received[0].begin(), received[0].end()) == "bcc...");
  CHECK(std::string(received[1].begin(), received[1].end()) == "abc...");
  CHECK(std::string(received[2].begin(), received[2].end()) == "aabbcc");
  for (const std::string& error : errors)
    CHECK(error.find("rank 2 sends 1 bytes to rank 1, which expects 2") != std::string::npos);
}

TEST_CASE("thread world: sums are made in the order of the ranks' tree") {
  // (1e8 + 1) + (-1e8 + 1) is 0 in fp32 while ((1e8 + 1) - 1e8) + 1 is 1, and (1e8 - 1e8) + (1 + 1) is 2.
  const std::array<float, 4> parts = {1e8f, 1.0f, -1e8f, 1.0f};
  fakes::ThreadWorld world(4);
  std::array<float, 4> reduced{}, scattered{};

  world.run([&](int rank, Channels channels) {
    reduced[rank] = parts[rank];
    std::vector<float> full(4, parts[rank]);
    auto first = channels[0]->all_reduce(std::span(&reduced[rank], 1));
    auto second = channels[1]->reduce_scatter(full, std::span(&scattered[rank], 1));
    (void)channels[1]->wait(*second);
    (void)channels[0]->wait(*first);
  });

  CHECK(reduced == std::array<float, 4>{0.0f, 0.0f, 0.0f, 0.0f});
  CHECK(scattered == std::array<float, 4>{0.0f, 0.0f, 0.0f, 0.0f});
}

TEST_CASE("thread world: broadcast and fp64 all-reduce reach every rank, empty operations are legal") {
  fakes::ThreadWorld world(4);
  std::array<int, 4> value = {0, 0, 42, 0};
  std::array<double, 4> total = {1.5, 2.5, 3.5, 4.5};
  std::atomic<int> failed = 0;

  world.run([&](int rank, Channels channels) {
    auto& channel = *channels[0];
    for (auto pending :
         {channel.broadcast(std::as_writable_bytes(std::span(&value[rank], 1)), /*root=*/2),
          channel.all_reduce(std::span(&total[rank], 1)), channel.all_reduce(std::span<float>()),
          channel.all_gather({}, {}), channel.reduce_scatter(std::span<const float>(), std::span<float>()),
          channel.broadcast({}, /*root=*/0), channel.barrier()}) {
      if (!pending || !channel.wait(*pending)) ++failed;
    }
  });

  CHECK(failed == 0);
  CHECK(value == std::array<int, 4>{42, 42, 42, 42});
  CHECK(total == std::array<double, 4>{12.0, 12.0, 12.0, 12.0});
}

TEST_CASE("thread world: ranks that post different operations learn who posted what") {
  fakes::ThreadWorld world(2);
  std::array<std::string, 2> story;

  world.run([&](int rank, Channels channels) {
    float value = 1.0f;
    auto pending = rank == 0 ? channels[0]->barrier() : channels[0]->all_reduce(std::span(&value, 1));
    auto result = channels[0]->wait(*pending);
    if (!result && result.error().code() == base::Code::kCorrupt) story[rank] = result.error().message();
  });

  for (const auto& text : story) {
    CHECK(text.find("operation #1: rank ") == 0);
    CHECK(text.find("rank 0 posted barrier") != std::string::npos);
    CHECK(text.find("rank 1 posted all_reduce (fp32) of 4 bytes") != std::string::npos);
  }
}

TEST_CASE("thread world: a silent rank is named by the timeout, a killed one by the loss") {
  fakes::ThreadWorld silent(3, {.timeout = std::chrono::milliseconds(50)});
  silent.silence(/*rank=*/2, /*from_ticket=*/2);
  std::array<bool, 3> first_worked{};
  std::array<std::string, 3> story;

  silent.run([&](int rank, Channels channels) {
    first_worked[rank] = channels[0]->wait(*channels[0]->barrier()).has_value();
    auto second = channels[0]->wait(*channels[0]->barrier());
    if (!second && second.error().code() == base::Code::kTimeout) story[rank] = second.error().message();
  });

  CHECK(first_worked == std::array<bool, 3>{true, true, true});
  for (const auto& text : story) CHECK(text == "operation #2: no answer from rank 2 within 50 ms");

  fakes::ThreadWorld mortal(2);
  auto survivor = mortal.communicator(/*rank=*/0, /*channel=*/0);
  auto pending = survivor->barrier();
  mortal.kill(1);
  auto result = survivor->wait(*pending);
  REQUIRE_FALSE(result);
  CHECK(result.error().code() == base::Code::kPeerLost);
  CHECK(result.error().message() == "operation #1: lost rank 1");
}
