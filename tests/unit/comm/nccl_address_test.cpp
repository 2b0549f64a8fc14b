#include "plugins/nccl/address.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

using namespace shardrun;
using nccl::kLongestAddress;
using nccl::pack;
using nccl::UniqueId;

namespace {

// Returns an id as NCCL makes them: a random number and a socket's address in front, zeros behind.
UniqueId id_of(int number, size_t used) {
  UniqueId id{};
  for (size_t i = 0; i < used; ++i)
    id.internal[i] = static_cast<char>(number + static_cast<int>(i) % 100 + 1);
  return id;
}

}  // namespace

TEST_CASE("nccl address: what was packed comes back") {
  nccl::RankAddress address{22809, {id_of(0, 40), id_of(1, 1), id_of(2, 128), UniqueId{}}};
  nccl::RankAddress back;
  REQUIRE(unpack(pack(address), &back).ok());
  CHECK(back.nccl_version == 22809);
  REQUIRE(back.ids.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(std::memcmp(back.ids[i].internal, address.ids[i].internal, 128) == 0);
}

TEST_CASE("nccl address: it never exceeds what the host carries; 24 usual ids fit, and 7 of any kind") {
  for (const auto& [used, fit] : {std::pair<size_t, size_t>{40, 24}, {128, 7}}) {
    nccl::RankAddress address{22809, {}};
    for (int i = 0; i < 40; ++i) address.ids.push_back(id_of(i, used));
    const auto bytes = pack(address);
    CHECK(bytes.size() <= kLongestAddress);
    nccl::RankAddress back;
    REQUIRE(unpack(bytes, &back).ok());
    CHECK(back.ids.size() == fit);
  }
}

TEST_CASE("nccl address: no bytes of a peer are read past their end, whatever they say") {
  const auto good = pack({22809, {id_of(0, 40), id_of(1, 128)}});
  nccl::RankAddress back;
  for (size_t size = 0; size < good.size(); ++size)
    CHECK_FALSE(unpack(std::span(good).first(size), &back).ok());
  for (size_t i = 4; i < good.size(); ++i) {
    for (const int bit : {1, 0x80}) {
      auto changed = good;
      changed[i] ^= static_cast<std::byte>(bit);
      const auto status = unpack(changed, &back);  // it only must not crash: most bits are payload
      if (status.ok()) CHECK(back.ids.size() == 2);
    }
  }
  CHECK_FALSE(unpack({}, &back).ok());
}
