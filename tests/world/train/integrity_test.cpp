// Numbers that change without an error: replicas that drift apart, collectives that bring other bytes, losses that jump.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "runtime/trainer/comm/checked_communicator.h"
#include "tests/fakes/thread_world.h"
#include "tests/support/bf16_number.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Flips a bit of the number `element` of what rank `victim` gets from its all-reduce number `when`.
class FlippingCommunicator : public ForwardingCommunicator {
 public:
  FlippingCommunicator(comm::Communicator& inner, int victim, int when)
      : ForwardingCommunicator(inner), victim_(victim), when_(when) {}
  base::Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    auto pending = inner_.all_reduce(buffer);
    if (rank() == victim_ && ++count_ == when_) {
      ticket_ = pending->ticket;
      buffer_ = buffer;
    }
    return pending;
  }
  base::Result<void> wait(comm::Pending pending) override {
    auto done = inner_.wait(pending);
    if (pending.ticket != ticket_) return done;
    ticket_ = 0;
    uint32_t bits = 0;
    std::memcpy(&bits, &buffer_[0], sizeof bits);
    bits ^= 1U << 22;
    std::memcpy(&buffer_[0], &bits, sizeof bits);
    return done;
  }

 private:
  int victim_, when_, count_ = 0;
  uint64_t ticket_ = 0;
  std::span<float> buffer_;
};

Decorate flipping(int victim, int when) {
  return [=](Group group, comm::Communicator& inner) -> std::unique_ptr<comm::Communicator> {
    if (group != Group::kReplica) return nullptr;
    return std::make_unique<FlippingCommunicator>(inner, victim, when);
  };
}

}  // namespace

TEST_CASE("integrity: a replica whose weights drifted is named by its own rank, and not by the others") {
  const Folder folder;
  auto options = tiny_options(folder, 3);
  options.node_name = "n";
  const RunOptions run{.loop = {.steps = 8}, .shard_degree = 1};
  // Nobody notices while nobody looks.
  require_success(run_world(3, options, run, flipping(2, 3)));

  options.compare_every_steps = 2;
  const auto ranks = run_world(3, options, run, flipping(2, 3));

  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(ranks[rank].losses.size() < 8);
    CHECK(ranks[rank].error_code == (rank == 2 ? base::Code::kCorrupt : base::Code::kPeerLost));
    CHECK(ranks[rank].error.find("the weights of rank 2 on node n differ from those of all their replicas") !=
          std::string::npos);
  }
  require_success(run_world(3, options, run));
}

TEST_CASE("integrity: two replicas that drifted apart are both named, and no checkpoint of them is written") {
  const Folder folder;
  auto options = tiny_options(folder, 4);
  options.compare_every_steps = 1000;  // and before every checkpoint
  const std::string checkpoints = folder / "checkpoints";
  const RunOptions run{.loop = {.steps = 8, .checkpoint_every_steps = 4},
                       .checkpoint_directory = checkpoints,
                       .shard_degree = 2};

  const auto ranks = run_world(4, options, run, flipping(1, 1));

  for (const RankRun& rank : ranks) {
    CHECK(rank.saved_steps.empty());
    CHECK(rank.error.find("differ from those of each other") != std::string::npos);
    CHECK(rank.losses.size() <= 4);
  }
  CHECK_FALSE(std::filesystem::exists(checkpoints + "/step_00000004"));
}

TEST_CASE(
    "integrity: a spike ends the run with the state before it saved, and names step, rank and sequences") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  options.spike_factor = 0.5;  // so that the first loss that is looked at is a spike
  const std::string checkpoints = folder / "checkpoints";
  const RunOptions run{.loop = {.steps = 12}, .checkpoint_directory = checkpoints};

  const auto ranks = run_world(2, options, run);

  for (const RankRun& rank : ranks) {
    CHECK(rank.error_code == base::Code::kRefused);
    CHECK(rank.losses.size() == 8);
    CHECK(rank.error.find("step 9: loss ") == 0);
    CHECK(rank.error.find(" is a spike: more than 0.5 times ") != std::string::npos);
    CHECK(rank.error.find("the costliest sequences are ") != std::string::npos);
    CHECK(rank.error.find("the state before it is in " + checkpoints + "/step_00000008") !=
          std::string::npos);
  }
  options.spike_factor = 0.0;
  const auto on = run_world(2, options, run);
  require_success(on);
  CHECK(on[0].losses.size() == 4);
}

namespace {

// Flips a bit of what rank 1 gets from its next operation: the largest of a fraction, or in bf16 of an exponent, for less is lost
// in the rounding of a sum.
class DamagingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  base::Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return note(inner_.all_gather(mine, all), all);
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return note(inner_.reduce_scatter(full, mine), std::as_writable_bytes(mine));
  }
  base::Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    return note(inner_.all_reduce(buffer), std::as_writable_bytes(buffer));
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const comm::Bf16> full,
                                             std::span<comm::Bf16> mine) override {
    return note(inner_.reduce_scatter(full, mine), std::as_writable_bytes(mine).subspan(1));
  }
  base::Result<comm::Pending> all_reduce(std::span<comm::Bf16> buffer) override {
    return note(inner_.all_reduce(buffer), std::as_writable_bytes(buffer).subspan(1));
  }
  base::Result<comm::Pending> all_reduce(std::span<double> buffer) override {
    return note(inner_.all_reduce(buffer), std::as_writable_bytes(buffer));
  }
  base::Result<comm::Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return note(inner_.broadcast(buffer, root), buffer);
  }
  base::Result<void> wait(comm::Pending pending) override {
    auto done = inner_.wait(pending);
    if (pending.ticket == ticket_) result_[2] ^= std::byte{0x40};
    return done;
  }

 private:
  base::Result<comm::Pending> note(base::Result<comm::Pending> pending, std::span<std::byte> result) {
    if (rank() == 1 && ticket_ == 0) {
      ticket_ = pending->ticket;
      result_ = result;
    }
    return pending;
  }
  uint64_t ticket_ = 0;
  std::span<std::byte> result_;
};

// Rounds the numbers to bf16, in the first half of their memory.
std::span<comm::Bf16> rounded(std::vector<float>& values) {
  const std::span<comm::Bf16> narrow(reinterpret_cast<comm::Bf16*>(values.data()), values.size());
  for (size_t i = 0; i < values.size(); ++i) narrow[i] = {tests::Bf16Number::nearest(values[i]).bits};
  return narrow;
}

// Returns the errors of the three ranks that do `operation` over a link that damages it, if `damages`, and are checked.
using Operation =
    std::function<base::Result<comm::Pending>(comm::Communicator&, std::vector<float>&, std::vector<float>&)>;
std::vector<std::string> errors_of(const Operation& operation, bool damages) {
  constexpr int kRanks = 3, kPart = 1000;
  fakes::ThreadWorld world(kRanks);
  std::vector<std::string> errors(kRanks);
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    DamagingCommunicator damaging(*channels[0]);
    comm::Communicator& below = damages ? damaging : *channels[0];
    const auto communicator = comm::checked(below, "gather");
    std::vector<float> own(kPart * kRanks), result(kPart * kRanks);
    for (size_t i = 0; i < own.size(); ++i)
      own[i] = static_cast<float>((rank + 1) * 1e-3) * static_cast<float>(i % 97) - 0.04F;
    auto pending = operation(*communicator, own, result);
    auto done = pending ? communicator->wait(*pending) : base::Result<void>(pending.error());
    if (!done) errors[static_cast<size_t>(rank)] = done.error().to_string();
  });
  return errors;
}

}  // namespace

TEST_CASE("integrity: what collectives carry is checked, whatever the operation") {
  const std::pair<const char*, Operation> kOperations[] = {
      {"arrived changed at its rank 1",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>& result) {
         const auto mine = std::as_bytes(std::span<const float>(own).first(own.size() / 3));
         return group.all_gather(mine, std::as_writable_bytes(std::span(result)));
       }},
      {"a sum of group gather is wrong at its rank 1",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>& result) {
         return group.reduce_scatter(own, std::span(result).first(own.size() / 3));
       }},
      {"a sum of group gather is wrong at its rank 1",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>&) {
         return group.all_reduce(std::span(own));
       }},
      {"a sum of group gather is wrong at its rank 1",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>& result) {
         return group.reduce_scatter(std::span<const comm::Bf16>(rounded(own)),
                                     rounded(result).first(own.size() / 3));
       }},
      {"a sum of group gather is wrong at its rank 1",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>&) {
         return group.all_reduce(rounded(own));
       }},
      {"a broadcast of group gather: its rank 1 has other bytes than its rank 0",
       [](comm::Communicator& group, std::vector<float>& own, std::vector<float>&) {
         return group.broadcast(std::as_writable_bytes(std::span(own)), /*root=*/0);
       }}};
  for (const auto& one : kOperations) {
    CAPTURE(one.first);
    for (const std::string& error : errors_of(one.second, /*damages=*/false)) CHECK(error == "");
    CHECK(errors_of(one.second, /*damages=*/true)[1].find(one.first) != std::string::npos);
  }
}

TEST_CASE("integrity: checked collectives change no bit of a training") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 6}, .shard_degree = 2};
  const auto plain = run_world(4, tiny_options(folder, 4), run);
  require_success(plain);
  const auto checked = run_world(4, tiny_options(folder, 4), run, [&](Group, comm::Communicator& inner) {
    return comm::checked(inner, "one");
  });
  require_success(checked);
  CHECK(checked[0].losses == plain[0].losses);
}
