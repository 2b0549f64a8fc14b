// The nccl plugin over stand-ins for libnccl and libcuda (tests/fakes/nccl): ranks are threads, streams dawdle.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/gate/network_check.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "runtime/trainer/comm/world.h"
#include "tests/fakes/scripted_device.h"
#include "tests/support/bf16_number.h"
#include "tests/world/comm/nccl_ranks.h"

using namespace shardrun;
using namespace shardrun::nccl_test;
using namespace std::chrono_literals;
using tests::Bf16Number;

namespace {

// Returns whole numbers, whose sums are exact in any order.
float value(int rank, size_t i, int round) {
  return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 997) + round);
}
float sum_of_values(int ranks, size_t i, int round) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i, round);
  return sum;
}

std::span<comm::Bf16> bf16(std::vector<Bf16Number>& values) {
  return {reinterpret_cast<comm::Bf16*>(values.data()), values.size()};
}

// Runs one of each collective on host buffers; returns "" if all is right.
std::string check_host(comm::Communicator& c, size_t count, int round) {
  const int ranks = c.size();
  const auto n = static_cast<size_t>(ranks);
  std::vector<float> mine(count), all(count * n, -1), full(count * n), part(count, -1);
  std::vector<double> wide(count);
  for (size_t i = 0; i < count; ++i) wide[i] = mine[i] = value(c.rank(), i, round);
  for (size_t i = 0; i < full.size(); ++i) full[i] = value(c.rank(), i, round);
  if (auto e =
          finish(c, c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))));
      !e.empty())
    return e;
  if (auto e = finish(c, c.reduce_scatter(full, part)); !e.empty()) return e;
  std::vector<Bf16Number> few(count * n),
      few_part(count);  // whole numbers below 256, whose sums are exact, too
  for (size_t i = 0; i < few.size(); ++i)
    few[i] = Bf16Number::nearest(static_cast<float>(c.rank() + static_cast<int>(i % 7)));
  std::vector<Bf16Number> few_summed(few.begin(), few.begin() + static_cast<std::ptrdiff_t>(count));
  if (auto e = finish(c, c.reduce_scatter(bf16(few), bf16(few_part))); !e.empty()) return e;
  if (auto e = finish(c, c.all_reduce(bf16(few_summed))); !e.empty()) return e;
  std::vector<float> summed = mine, cast = mine;
  if (auto e = finish(c, c.all_reduce(std::span(summed))); !e.empty()) return e;
  if (auto e = finish(c, c.all_reduce(std::span(wide))); !e.empty()) return e;
  const int root = round % ranks;
  if (auto e = finish(c, c.broadcast(std::as_writable_bytes(std::span(cast)), root)); !e.empty()) return e;
  if (auto e = finish(c, c.barrier()); !e.empty()) return e;
  for (size_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < n; ++r)
      if (all[r * count + i] != value(static_cast<int>(r), i, round)) return "all_gather: wrong";
    const size_t at = static_cast<size_t>(c.rank()) * count + i;
    const auto few_sum = [&](size_t index) {
      return static_cast<float>(ranks * (ranks - 1) / 2 + ranks * static_cast<int>(index % 7));
    };
    if (few_part[i].value() != few_sum(at)) return "reduce_scatter bf16: wrong";
    if (few_summed[i].value() != few_sum(i)) return "all_reduce bf16: wrong";
    if (part[i] != sum_of_values(ranks, at, round)) return "reduce_scatter: wrong";
    if (summed[i] != sum_of_values(ranks, i, round)) return "all_reduce fp32: wrong";
    if (wide[i] != sum_of_values(ranks, i, round)) return "all_reduce fp64: wrong";
    if (cast[i] != value(root, i, round)) return "broadcast: wrong";
  }
  return {};
}

// Runs reductions and gathers in flight together on buffers that the stream writes just before and reads just after.
std::string check_device(Stream& stream, comm::Communicator& gathers, comm::Communicator& sums,
                         size_t count) {
  const auto n = static_cast<size_t>(gathers.size());
  struct Round {
    std::vector<float> mine, all, full, part, seen_all, seen_part;
    comm::Pending gather, sum;
  };
  std::vector<Round> rounds(6);
  const int rank = gathers.rank();
  for (int number = 0; number < 6; ++number) {
    Round& r = rounds[static_cast<size_t>(number)];
    r.mine.resize(count);
    r.all.resize(count * n);
    r.full.resize(count * n);
    r.part.resize(count);
    stream.put([&r, rank, number] {
      for (size_t i = 0; i < r.mine.size(); ++i) r.mine[i] = value(rank, i, number);
      for (size_t i = 0; i < r.full.size(); ++i) r.full[i] = value(rank, i, number);
    });
    auto gather =
        gathers.all_gather(std::as_bytes(std::span(r.mine)), std::as_writable_bytes(std::span(r.all)));
    auto sum = sums.reduce_scatter(r.full, r.part);
    if (!gather || !sum) return "an operation did not start";
    r.gather = *gather;
    r.sum = *sum;
    if (number < 2) continue;
    Round& before = rounds[static_cast<size_t>(number - 2)];  // three are in flight
    if (auto e = text_of(gathers.wait(before.gather)); !e.empty()) return e;
    if (auto e = text_of(sums.wait(before.sum)); !e.empty()) return e;
    stream.put([&before] {
      before.seen_all = before.all;
      before.seen_part = before.part;
    });
  }
  for (int number = 4; number < 6; ++number) {
    Round& r = rounds[static_cast<size_t>(number)];
    if (auto e = text_of(gathers.wait(r.gather)); !e.empty()) return e;
    if (auto e = text_of(sums.wait(r.sum)); !e.empty()) return e;
    stream.put([&r] {
      r.seen_all = r.all;
      r.seen_part = r.part;
    });
  }
  stream.synchronize();
  for (int number = 0; number < 6; ++number) {
    const Round& r = rounds[static_cast<size_t>(number)];
    for (size_t i = 0; i < count; ++i) {
      for (size_t from = 0; from < n; ++from)
        if (r.seen_all[from * count + i] != value(static_cast<int>(from), i, number))
          return "all_gather: wrong";
      const size_t at = static_cast<size_t>(rank) * count + i;
      if (r.seen_part[i] != sum_of_values(static_cast<int>(n), at, number)) return "reduce_scatter: wrong";
    }
  }
  return {};
}

std::vector<std::string> device_errors(Fakes& fakes, int ranks) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::PluginSession& session) {
    Stream stream(fakes);
    auto gathers = opened(session.device_communicator(0, stream.handle()));
    auto sums = opened(session.device_communicator(1, stream.handle()));
    errors[static_cast<size_t>(rank)] = check_device(stream, *gathers, *sums, 1021);
    stream.synchronize();
  });
  return errors;
}

}  // namespace

TEST_CASE(
    "nccl: every collective of host buffers has the right numbers, among 1 to 4 ranks and a part of them") {
  Fakes fakes;
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    run_ranks(ranks, [&](int rank, comm::PluginSession& session) {
      CHECK(session.provider() == "nccl 2.28.9");
      CHECK_FALSE(session.sums_in_rank_order());
      CHECK(session.takes_device_buffers());
      auto world = opened(session.communicator(0));
      int round = 0;
      for (const size_t count : {0, 1, 3, 1021, 65537}) CHECK(check_host(*world, count, ++round) == "");
      if (ranks >= 3 && rank != 1) {
        std::vector<uint32_t> group;
        for (int other = 0; other < ranks; ++other)
          if (other != 1) group.push_back(static_cast<uint32_t>(other));
        auto part = opened(session.communicator(2, group));
        CHECK(part->size() == ranks - 1);
        CHECK(check_host(*part, 33, ++round) == "");
      }
      CHECK(finish(*world, world->barrier()) == "");
    });
  }
  CHECK(fakes.nccl->aborts == 0);
  CHECK(fakes.nccl->destroys == 1 + 2 + (3 + 2) + (4 + 3));
}

TEST_CASE("nccl: operations of two channels keep the order of the caller's stream, whatever dawdles") {
  Fakes fakes;
  for (const int dawdle : {0, 300, 2000}) {
    fakes.cuda->dawdle_microseconds = dawdle;
    for (const int ranks : {1, 2, 4}) CHECK(device_errors(fakes, ranks) == std::vector<std::string>(ranks));
  }
}

#ifndef __SANITIZE_THREAD__  // because what it does wrong on purpose is a race
TEST_CASE("nccl: the stand-ins show a missing order as wrong numbers") {
  Fakes fakes;
  fakes.cuda->dawdle_microseconds = 3000;
  fakes.cuda->ignores_events = true;
  bool wrong = false;
  for (const std::string& error : device_errors(fakes, 2))
    wrong = wrong || error.find("wrong") != std::string::npos;
  CHECK(wrong);
}
#endif

TEST_CASE("nccl: a group of one rank asks NCCL for one channel, and others for as many as it likes") {
  Fakes fakes;
  run_ranks(2, [&](int rank, comm::PluginSession& session) {
    auto world = opened(session.communicator(0));
    const std::vector<uint32_t> myself = {static_cast<uint32_t>(rank)};
    auto alone = opened(session.communicator(rank + 1, myself));
    CHECK(finish(*world, world->barrier()) == "");
    CHECK(finish(*alone, alone->barrier()) == "");
  });
  CHECK_EQ(fakes.nccl->narrow_configs.load(), 2);
}

TEST_CASE("nccl: one of its unique ids serves one channel, and more than there are is refused") {
  Fakes fakes;
  run_ranks(1, [&](int, comm::PluginSession& session) {
    auto a = opened(session.communicator(1));
    const auto again = session.communicator(5);  // 5 leaves 1 when divided by the 4 ids that were asked for
    REQUIRE_FALSE(again);
    CHECK(again.error().message().find("channel 5 would meet where another one") == 0);
  });
}

TEST_CASE("nccl: a preflight opens the channels of all its pairs, however many nodes there are") {
  Fakes fakes;
  // With a channel for each pair, the last of them once met where an earlier one of the same rank had met.
  for (const int nodes : {24, 25, 49}) {
    CAPTURE(nodes);
    run_ranks(nodes, [&](int rank, comm::PluginSession& session) {
      auto world = opened(session.communicator(0));
      CHECK(finish(*world, world->barrier()) == "");
      std::vector<std::unique_ptr<comm::Communicator>> pairs;
      for (int round = 0; round < 3; ++round) {
        for (const int edge : {rank, (rank + nodes - 1) % nodes}) {
          if (gate::pair_round(edge, nodes) != round) continue;
          std::vector<uint32_t> pair = {static_cast<uint32_t>(edge),
                                        static_cast<uint32_t>((edge + 1) % nodes)};
          std::sort(pair.begin(), pair.end());
          pairs.push_back(opened(session.communicator(gate::channel_of_round(round), pair)));
          CHECK(finish(*pairs.back(), pairs.back()->barrier()) == "");
        }
      }
      CHECK(pairs.size() == 2);
      CHECK(finish(*world, world->barrier()) == "");
    });
  }
}

TEST_CASE("nccl: addresses that are no addresses are refused with the rank that sent them") {
  Fakes fakes;
  auto session = comm::PluginSession::open({.plugin_path = NCCL_PLUGIN, .node_count = 1});
  REQUIRE(session);
  const std::string good = session->local_address();
  const auto refusal = [&](std::string bad) {
    auto fresh = comm::PluginSession::open({.plugin_path = NCCL_PLUGIN, .node_count = 1});
    REQUIRE(fresh);
    return text_of(fresh->connect(0, {{fresh->local_address(), "a", 0}, {std::move(bad), "b", 1}}));
  };
  CHECK(refusal("").find("invalid|rank 1 (node b): an address is not of this plugin") == 0);
  CHECK(refusal("sro1 and so on").find("invalid|rank 1 (node b): an address is not of this plugin") == 0);
  for (size_t size = 4; size < good.size(); ++size)
    CHECK(refusal(good.substr(0, size)) == "invalid|rank 1 (node b): an address is cut short or too long");
  CHECK(refusal(good + "x") == "invalid|rank 1 (node b): an address is cut short or too long");
  std::string other_version = good;
  other_version[4] ^= 1;
  CHECK(refusal(other_version).find("invalid|rank 1 (node b) has NCCL 2.28.8, rank 0 (node a) has 2.28.9") ==
        0);
  std::string long_id = good;
  long_id[10] = '\x7f';
  long_id[11] = '\x7f';
  CHECK(refusal(long_id) == "invalid|rank 1 (node b): an address is cut short or too long");
}

TEST_CASE("nccl: a rank without a GPU of its own, an unknown provider and NCCL_COMM_ID are refused") {
  Fakes fakes;
  const auto refusal = [](const comm::SessionOptions& options) {
    auto session = comm::PluginSession::open(options);
    return session ? "" : session.error().to_string();
  };
  CHECK(refusal({.plugin_path = NCCL_PLUGIN, .local_rank = 4})
            .find("rank 4 of this node would use GPU 4, and 4 can be seen") != std::string::npos);
  CHECK(refusal({.plugin_path = NCCL_PLUGIN, .provider = "tcp"})
            .find("no provider \"tcp\"; there are auto, efa, ib and socket") != std::string::npos);
  ::setenv("NCCL_COMM_ID", "127.0.0.1:1", 1);
  CHECK(refusal({.plugin_path = NCCL_PLUGIN}).find("NCCL_COMM_ID is set") != std::string::npos);
  ::unsetenv("NCCL_COMM_ID");
}

TEST_CASE(
    "connect_world: a group's buffers are where it was told, through the plugin's own channels or staged") {
  Fakes fakes;
  fakes.cuda->dawdle_microseconds = 500;
  for (const auto& [name, value_of] : {std::pair("GLOBAL_RANK", "0"),
                                       {"WORLD_SIZE", "1"},
                                       {"LOCAL_RANK", "0"},
                                       {"LOCAL_WORLD_SIZE", "1"},
                                       {"NODE_INDEX", "0"},
                                       {"NODE_COUNT", "1"},
                                       {"NODE_NAME", "n0"},
                                       {"RUN_DIR", "/nonexistent"}})
    ::setenv(fmt::format("SHARDRUN_{}", name).c_str(), value_of, 1);
  for (const char* plugin : {NCCL_PLUGIN, OFI_PLUGIN}) {
    if (*plugin == '\0') continue;  // libfabric was not there to build it
    Stream stream(fakes);
    fakes::ScriptedDevice device({.dawdles = {500us, 100us, 100us}});
    const bool nccl = plugin == std::string(NCCL_PLUGIN);
    const auto put = [&](std::function<void()> work) {
      if (nccl) {
        stream.put(std::move(work));
      } else {
        device.compute(std::move(work));
      }
    };
    std::vector<float> mine(100), all(100), seen(100);
    comm::WorldOptions options;
    options.plugin_path = plugin;
    options.timeout = 20s;
    options.groups = {{}, {}};
    options.device = comm::DeviceUse{0, stream.handle(), {-1, 400}, [&] { return device.link(); }};
    auto world = comm::connect_world(options);
    REQUIRE_MESSAGE(world, (world ? "" : world.error().to_string()));
    CHECK(world->sums_in_rank_order == !nccl);
    CHECK(check_host(*world->communicators[0], 100, 1) == "");
    put([&] { std::fill(mine.begin(), mine.end(), 7.0f); });
    CHECK(finish(*world->communicators[1],
                 world->communicators[1]->all_gather(std::as_bytes(std::span(mine)),
                                                     std::as_writable_bytes(std::span(all)))) == "");
    put([&] { seen = all; });
    nccl ? stream.synchronize() : device.synchronize();
    CHECK(seen == std::vector<float>(100, 7.0f));
  }
}
