// The ofi plugin with every rank a thread of this process: what the sanitizers can see whole.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/statvfs.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/abi/comm_v1.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "tests/process/comm/peer_checks.h"
#include "tests/support/small_shm.h"

using namespace shardrun;

namespace {

std::vector<comm::PluginSession> open_world(int size, const std::string& provider,
                                            std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                            bool on_one_node = true) {
  std::vector<comm::PluginSession> sessions;
  std::vector<comm::PeerCard> cards;
  for (int rank = 0; rank < size; ++rank) {
    auto session =
        comm::PluginSession::open({.plugin_path = OFI_PLUGIN, .provider = provider, .timeout = timeout});
    REQUIRE(session);
    cards.push_back({session->local_address(), "here", on_one_node ? 1 : uint64_t(rank + 1)});
    sessions.push_back(std::move(*session));
  }
  for (int rank = 0; rank < size; ++rank) REQUIRE(sessions[rank].connect(rank, cards));
  return sessions;
}

template <typename Body>
void run(std::vector<comm::PluginSession>& sessions, Body body) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < sessions.size(); ++rank) {
    threads.emplace_back([&sessions, &body, rank] { body(static_cast<int>(rank), sessions[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Whether libfabric is in the plugin, and not a library that others share.
bool is_libfabric_inside() {
  void* const plugin = dlopen(OFI_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  void* const table = plugin == nullptr ? nullptr : dlsym(plugin, "shardrun_comm_v1");
  return table != nullptr &&
         std::string(static_cast<shardrun_comm_v1_table*>(table)->header.build_id).ends_with(" static");
}

// How often this process has called write() and its like; messages are not among them.
int64_t writes() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t count = -1;
  while (counts >> name >> count && name != "syscw:") {
  }
  return count;
}

}  // namespace

TEST_CASE("ofi in one process: two channels of four ranks deliver the serial sums, over tcp and shm") {
  for (const char* provider : {"tcp", "shm"}) {
    auto sessions = open_world(4, provider);
    std::vector<std::string> errors(sessions.size(), "not run");

    run(sessions, [&](int rank, comm::PluginSession& session) {
      auto a = session.communicator(0), b = session.communicator(1), c = session.communicator(2);
      errors[rank] = tests::check_collectives(**a);
      if (errors[rank].empty()) errors[rank] = tests::check_overlap(**a, **b);
      if (errors[rank].empty()) errors[rank] = tests::check_all_to_all(**c);
      (void)(*a)->wait(*(*a)->barrier());
    });

    for (const std::string& error : errors) CHECK(error == "");
    CHECK(sessions[0].provider() == provider);
  }
}

TEST_CASE("ofi in one process: an operation that one rank starts late holds up no other, over tcp and shm") {
  // Ranks 0 and 1 scatter sums, and so do 2 and 3; 0 and 2 add up, and so do 1 and 3. Ranks 0 and 3 start with adding
  // up, for which 2 and 1 are late, because they wait for the sums that 3 and 0 have yet to send.
  constexpr size_t kCount = 1 << 20;
  for (const char* provider : {"tcp", "shm"}) {
    auto sessions = open_world(4, provider, std::chrono::seconds(10));
    std::vector<std::string> errors(sessions.size());

    run(sessions, [&](int rank, comm::PluginSession& session) {
      const auto first = static_cast<uint32_t>(rank / 2 * 2), below = static_cast<uint32_t>(rank % 2);
      const std::vector<uint32_t> neighbours = {first, first + 1}, across = {below, below + 2};
      auto scatter = session.communicator(0, neighbours), add = session.communicator(1, across);
      REQUIRE((scatter && add));
      std::vector<float> full(2 * kCount, 1.0f), mine(kCount), sum(kCount, 1.0f);
      const bool early = rank == 0 || rank == 3;
      base::Result<comm::Pending> added = comm::Pending{};
      if (early) added = (*add)->all_reduce(std::span(sum));
      const auto scattered = (*scatter)->reduce_scatter(full, mine);
      if (auto done = (*scatter)->wait(*scattered); !done) errors[rank] = done.error().to_string();
      if (!early) added = (*add)->all_reduce(std::span(sum));
      if (!added) {
        errors[rank] = added.error().to_string();
      } else if (auto done = (*add)->wait(*added); !done) {
        errors[rank] = done.error().to_string();
      }
      if (mine.back() != 2.0f || sum.back() != 2.0f) errors[rank] += " wrong sums";
    });

    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE(
    "ofi in one process: a channel's number serves one group after another, and halves of one as they come") {
  auto sessions = open_world(4, "shm");
  std::vector<std::string> errors(sessions.size(), "not run");

  run(sessions, [&](int rank, comm::PluginSession& session) {
    const auto first = static_cast<uint32_t>(rank / 2 * 2), below = static_cast<uint32_t>(rank % 2);
    errors[rank] = "";
    for (int round = 0; round < 3 && errors[rank].empty(); ++round) {
      for (const auto& group : {std::vector<uint32_t>{first, first + 1},
                                std::vector<uint32_t>{below, below + 2}, std::vector<uint32_t>{0, 1, 2, 3}}) {
        auto channel = session.communicator(/*channel=*/5, group);
        REQUIRE(channel);
        if (errors[rank].empty()) errors[rank] = tests::check_collectives(**channel);
      }
    }
  });

  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("ofi in one process: after a failed wait the buffers are free, and the others learn who left") {
  auto sessions = open_world(3, "tcp", std::chrono::milliseconds(300));
  std::vector<base::Code> codes(3, base::Code::kIo);

  run(sessions, [&](int rank, comm::PluginSession& session) {
    auto channel = session.communicator(0);
    if (rank == 2) return;
    auto data = std::make_unique<std::vector<float>>(1 << 20, 1.0f);
    auto pending = (*channel)->all_reduce(std::span(*data));
    auto done = (*channel)->wait(*pending);
    data.reset();  // what still touched it would be seen by the address sanitizer
    if (!done) codes[rank] = done.error().code();
    auto after = (*channel)->barrier();
    CHECK_FALSE(after);
  });

  CHECK(codes[0] == base::Code::kTimeout);
  CHECK(codes[1] == base::Code::kTimeout);
}

TEST_CASE("ofi in one process: whom a full /dev/shm fails says so, and the other has lost a peer" *
          doctest::skip(!tests::may_shrink_shm())) {
  std::vector<base::Code> codes(2, base::Code::kInvalid);
  std::vector<std::string> errors(2);
  const auto free_bytes = [] {
    struct statvfs about {};
    return ::statvfs("/dev/shm", &about) == 0 ? about.f_bavail * about.f_bsize : 0;
  };

  tests::with_small_shm("1700k", [&] {
    auto sessions = open_world(2, "shm");
    run(sessions, [&](int rank, comm::PluginSession& session) {
      auto channel = session.communicator(0);
      // It has room for one rank: for that which begins.
      while (rank == 0 && free_bytes() > 400'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::vector<float> data(1 << 20, 1.0f);
      auto pending = (*channel)->all_reduce(std::span(data));
      const auto done = pending ? (*channel)->wait(*pending) : pending.error();
      if (done) return;
      codes[rank] = done.error().code();
      errors[rank] = done.error().message();
    });
  });

  CHECK(codes[0] == base::Code::kIo);
  CHECK(errors[0].starts_with("/dev/shm has no "));
  CHECK(codes[1] == base::Code::kPeerLost);
  CHECK(errors[1] == errors[0] + ", says rank 0 (node here)");
}

TEST_CASE("ofi in one process: wrong uses are refused with a reason") {
  auto sessions = open_world(2, "tcp");
  const std::vector<uint32_t> without_us = {1}, descending = {1, 0}, beyond = {0, 7};

  CHECK(sessions[0].communicator(0, without_us).error().code() == base::Code::kInvalid);
  CHECK(sessions[0].communicator(0, descending).error().code() == base::Code::kInvalid);
  CHECK(sessions[0].communicator(0, beyond).error().code() == base::Code::kInvalid);
  auto channel = sessions[0].communicator(0);
  REQUIRE(channel);
  CHECK(sessions[0].communicator(0).error().message() == "channel 0 is open already");
  CHECK((*channel)->wait({5}).error().message() == "channel 0 has given no ticket 5");
  CHECK((*channel)->broadcast({}, /*root=*/2).error().code() == base::Code::kInvalid);
}

TEST_CASE(
    "ofi in one process: no byte of a first operation is sent before all ranks of its channel have begun "
    "it") {
  constexpr std::chrono::milliseconds kLate{300};
  auto sessions = open_world(2, "tcp", std::chrono::seconds(60), /*on_one_node=*/false);
  std::vector<std::chrono::steady_clock::duration> took;

  run(sessions, [&](int rank, comm::PluginSession& session) {
    auto channel = session.communicator(0);
    std::vector<std::byte> bytes(256 << 10);
    (void)(*channel)->wait(*(*channel)->barrier());
    for (const size_t count : {size_t{256} << 10, size_t{0}}) {
      if (rank == 1) std::this_thread::sleep_for(kLate);
      const auto begin = std::chrono::steady_clock::now();
      if (count > 0) {
        CHECK((*channel)->wait(*(*channel)->broadcast(std::span(bytes).first(count), /*root=*/0)));
      } else {
        CHECK((*channel)->wait(*(*channel)->all_gather({}, {})));
      }
      if (rank == 0) took.push_back(std::chrono::steady_clock::now() - begin);
    }
  });

  // So few bytes need nobody's word, and the root would be done with them at once, as everybody with none.
  for (const auto time : took) CHECK(time > kLate / 2);
}

TEST_CASE("ofi in one process: messages of another node cost no signals of libfabric's" *
          doctest::skip(!is_libfabric_inside())) {
  constexpr int kRounds = 100;
  constexpr size_t kBytes = 1 << 18;
  auto sessions = open_world(2, "tcp", std::chrono::seconds(60), /*on_one_node=*/false);
  std::vector<int64_t> written(2, -1);

  run(sessions, [&](int rank, comm::PluginSession& session) {
    auto channel = session.communicator(0);
    REQUIRE(channel);
    const std::vector<std::byte> mine(kBytes);
    std::vector<std::byte> all(2 * kBytes);
    REQUIRE((*channel)->wait(*(*channel)->barrier()));
    const int64_t before = writes();
    for (int round = 0; round < kRounds; ++round) {
      auto pending = (*channel)->all_gather(mine, all);
      REQUIRE(pending);
      REQUIRE((*channel)->wait(*pending));
    }
    written[rank] = writes() - before;
  });

  // Each rank wakes its engine once for each operation, and libfabric would tell of each message twice.
  for (const int64_t count : written) {
    CHECK(count > 0);
    CHECK(count <= 3 * kRounds);
  }
}
