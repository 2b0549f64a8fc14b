// Tests which attention the ranks of a job agree on. cuDNN is scripted: each rank has it in some version, or has a
// reason why not.
#include "runtime/trainer/train/attention_choice.h"

#include <doctest/doctest.h>

#include <optional>

#include "tests/fakes/thread_world.h"

using namespace shardrun;
using spec::GpuAttention;
using train::AttentionChoice;
using train::AttentionRequest;

namespace {

using Offer = base::Result<kernels::CudnnAttentionUse>;

Offer cudnn(int64_t version, int64_t workspace_bytes = 1) {
  return kernels::CudnnAttentionUse{version, workspace_bytes};
}
Offer none(const std::string& why) {
  return base::Error(base::Code::kNotFound, why);
}

struct Outcome {
  std::optional<AttentionChoice> choice;
  std::string error;
  int tries = 0;  // tries of all ranks
};

// Returns what the ranks agreed on; they must have the same answer.
Outcome choose(const AttentionRequest& request, const std::vector<Offer>& offers) {
  fakes::ThreadWorld world(static_cast<int>(offers.size()), {.channels = 1});
  std::vector<Outcome> outcomes(offers.size());
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    Outcome& mine = outcomes[static_cast<size_t>(rank)];
    auto choice = train::choose_attention(*channels[0], request, [&] {
      ++mine.tries;
      return offers[static_cast<size_t>(rank)];
    });
    choice ? void(mine.choice = std::move(*choice)) : void(mine.error = choice.error().to_string());
  });
  for (size_t rank = 1; rank < outcomes.size(); ++rank) {
    CHECK_EQ(outcomes[rank].error, outcomes[0].error);
    REQUIRE_EQ(outcomes[rank].choice.has_value(), outcomes[0].choice.has_value());
    if (outcomes[0].choice) CHECK_EQ(outcomes[rank].choice->text, outcomes[0].choice->text);
    outcomes[0].tries += outcomes[rank].tries;
  }
  return outcomes[0];
}

}  // namespace

TEST_CASE("attention: auto takes cuDNN's where every rank has it, with the largest workspace") {
  const auto [choice, error, tries] =
      choose({}, {cudnn(91900, 5 << 20), cudnn(91900, (7 << 20) - 1), cudnn(91900)});
  REQUIRE(choice);
  CHECK(choice->by_cudnn);
  CHECK_EQ(choice->kept, "cudnn 91900");
  CHECK_EQ(choice->text, "cuDNN 9.19.0, with a workspace of 7 MiB");
  CHECK(choice->notice.empty());
}

TEST_CASE(
    "attention: one rank without cuDNN, or with another version, gives all of them ours, and says who") {
  const auto absent = choose({}, {cudnn(91900), cudnn(91900), none("no libcudnn.so.9"), none("old driver")});
  REQUIRE(absent.choice);
  CHECK_FALSE(absent.choice->by_cudnn);
  CHECK_EQ(absent.choice->kept, "shardrun");
  CHECK_EQ(absent.choice->text, "shardrun's kernels: rank 2: no libcudnn.so.9");
  const auto other = choose({}, {cudnn(91900), cudnn(90800)});
  REQUIRE(other.choice);
  CHECK_FALSE(other.choice->by_cudnn);
  CHECK_EQ(other.choice->text, "shardrun's kernels: rank 1 has cuDNN 9.8.0, rank 0 has 9.19.0");
}

TEST_CASE("attention: what cuDNN cannot run, and what is not asked of it, it is never tried for") {
  const auto refused = choose({.refusal = "documents are packed"}, {cudnn(91900), cudnn(91900)});
  REQUIRE(refused.choice);
  CHECK_EQ(refused.choice->text, "shardrun's kernels: documents are packed");
  CHECK_EQ(refused.tries, 0);
  const auto own = choose({.wanted = GpuAttention::kOwn}, {cudnn(91900), cudnn(91900)});
  REQUIRE(own.choice);
  CHECK_EQ(own.choice->text, "shardrun's kernels: [gpu] attention says so");
  CHECK_EQ(own.tries, 0);
}

TEST_CASE("attention: cuDNN's that was asked for and cannot be ends every rank with the mend") {
  const AttentionRequest wanted{.wanted = GpuAttention::kCudnn};
  const auto absent = choose(wanted, {cudnn(91900), none("no libcudnn.so.9; install cuDNN 9")});
  CHECK_EQ(
      absent.error,
      "[gpu] attention = \"cudnn\" cannot be: rank 1: no libcudnn.so.9; install cuDNN 9; mend that, or set "
      "attention = \"auto\"");
  CHECK_FALSE(choose({.wanted = GpuAttention::kCudnn, .refusal = "fp32"}, {cudnn(91900)}).error.empty());
  CHECK(choose(wanted, {cudnn(91900), cudnn(91900)}).choice->by_cudnn);
}

TEST_CASE("attention: a continued run has what its checkpoint had, or says that bits may differ") {
  const auto kept = choose({.saved = "shardrun"}, {cudnn(91900)});
  REQUIRE(kept.choice);
  CHECK_FALSE(kept.choice->by_cudnn);
  CHECK_EQ(kept.tries, 0);
  CHECK(kept.choice->notice.empty());
  CHECK(choose({.saved = "cudnn 91900"}, {cudnn(91900)}).choice->notice.empty());

  const auto newer = choose({.saved = "cudnn 90800"}, {cudnn(91900)});
  CHECK(newer.choice->by_cudnn);
  CHECK_EQ(
      newer.choice->notice,
      "the run that is continued had attention by cudnn 90800, this one has it by cudnn 91900: losses may "
      "differ in their last bits from what they were to be");
  CHECK_FALSE(choose({.saved = "cudnn 91900"}, {none("gone")}).choice->notice.empty());
  CHECK_FALSE(
      choose({.wanted = GpuAttention::kCudnn, .saved = "shardrun"}, {cudnn(91900)}).choice->notice.empty());
  CHECK_FALSE(
      choose({.wanted = GpuAttention::kOwn, .saved = "cudnn 91900"}, {cudnn(91900)}).choice->notice.empty());
}
