// A program that speaks libfabric and knows a rank's port cannot put its numbers into a sum.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "plugins/ofi/address.h"
#include "plugins/ofi/fabric.h"
#include "plugins/ofi/operations.h"
#include "runtime/trainer/comm/plugin_communicator.h"

using namespace shardrun;

namespace {

constexpr int kSums = 20;
constexpr uint64_t kFloats = 8;

// The tag that a rank's part of a small all-reduce would have, were there no key: channel 0, and what anybody can count.
uint64_t countable_tag(uint64_t ticket, uint64_t sender) {
  return uint64_t{ofi::kSmallFloat} << 53 | ticket << 20 | sender;
}

// Sends forged parts of rank 1 for all sums to come, to each of the victim's endpoints. Returns how many were taken.
int forge(const ofi::RankAddress& victim) {
  std::unique_ptr<ofi::Endpoint> endpoint;
  REQUIRE(ofi::Endpoint::open({.provider = "tcp", .source = "127.0.0.1"}, &endpoint).ok());
  const auto targets = static_cast<uint32_t>(victim.endpoints.size());
  for (uint32_t target = 0; target < targets; ++target)
    REQUIRE(endpoint->connect_peer(target, victim.endpoints[target].bytes, targets).ok());
  const std::vector<float> forged(kFloats, 1000.0F);
  std::vector<ofi::Request> requests(size_t{kSums} * targets);
  std::vector<ofi::Completion> taken;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  size_t posted = 0;
  while (taken.size() < requests.size() && std::chrono::steady_clock::now() < deadline) {
    while (posted < requests.size()) {
      ofi::Request& request = requests[posted];
      request.is_send = true;
      request.global_rank = static_cast<uint32_t>(posted % targets);
      int error = 0;
      const auto post = endpoint->send(forged.data(), kFloats * sizeof(float),
                                       countable_tag(1 + posted / targets, 1), &request, &error);
      if (post != ofi::Post::kAccepted) break;
      ++posted;
    }
    REQUIRE(endpoint->poll(&taken).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ofi::Endpoint::abandon(std::move(endpoint));
  return static_cast<int>(taken.size());
}

}  // namespace

TEST_CASE("ofi: messages under tags that can be counted, from a program that is no rank, are in no sum") {
  std::vector<comm::PluginSession> sessions;
  std::vector<comm::PeerCard> cards;
  for (int rank = 0; rank < 2; ++rank) {
    auto session = comm::PluginSession::open({.plugin_path = OFI_PLUGIN, .provider = "tcp"});
    REQUIRE(session);
    cards.push_back({session->local_address(), "here", 1});
    sessions.push_back(std::move(*session));
  }
  ofi::RankAddress victim;
  const std::string& bytes = cards[0].address;
  REQUIRE(ofi::unpack(std::as_bytes(std::span(bytes.data(), bytes.size())), &victim).ok());
  REQUIRE(victim.endpoints.size() == 2);
  for (int rank = 0; rank < 2; ++rank) REQUIRE(sessions[rank].connect(rank, cards));

  CHECK(forge(victim) == 2 * kSums);

  std::vector<std::vector<float>> sums(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = sessions[rank].communicator(0);
      for (int i = 0; i < kSums; ++i) {
        std::vector<float> part(kFloats, 1.0F);
        if (!(*communicator)->wait(*(*communicator)->all_reduce(std::span<float>(part)))) return;
        sums[rank].push_back(part.front());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_rank : sums) CHECK(of_rank == std::vector<float>(kSums, 2.0F));
}
