// The engine with communicators that note what they are asked for and do it only when they are waited for.
#include "runtime/trainer/shard/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/support/random_step.h"
#include "tests/support/step_sentences.h"

using namespace shardrun;
using namespace shardrun::shard;
using plan::StepEvent;
using Kind = StepEvent::Kind;

namespace {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kElements = 40;  // of block 0; each later one is larger by as many

std::vector<int64_t> block_elements(const plan::StepShape& shape) {
  const int blocks = 1 + *std::max_element(shape.visits.begin(), shape.visits.end());
  std::vector<int64_t> elements;
  for (int block = 0; block < blocks; ++block) elements.push_back(kElements * (block + 1));
  return elements;
}

// Rank 0 of a group whose others hold the same: an operation that was asked for leaves its target without meaning until it
// is waited for.
class LateCommunicator : public comm::Communicator {
 public:
  using Note = std::function<void(const char* what, const void* from, const void* to)>;
  LateCommunicator(int size, Note note) : size_(size), note_(std::move(note)) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  base::Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const std::span target(reinterpret_cast<float*>(all.data()), all.size() / sizeof(float));
    std::fill(target.begin(), target.end(), kNothing);
    return later("gather", mine.data(), all.data(), [mine, all] {
      for (size_t at = 0; at < all.size(); at += mine.size()) std::memcpy(&all[at], mine.data(), mine.size());
    });
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    std::fill(mine.begin(), mine.end(), kNothing);
    const auto size = static_cast<float>(size_);
    return later("reduce", full.data(), mine.data(), [full, mine, size] {
      std::transform(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(mine.size()), mine.begin(),
                     [&](float value) { return size * value; });
    });
  }
  base::Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    const auto size = static_cast<float>(size_);
    return later("sum", buffer.data(), buffer.data(), [buffer, size] {
      for (float& value : buffer) value *= size;
    });
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const comm::Bf16>, std::span<comm::Bf16>) override {
    return base::Error(base::Code::kIo, "none");
  }
  base::Result<comm::Pending> all_reduce(std::span<double>) override {
    return base::Error(base::Code::kIo, "none");
  }
  base::Result<comm::Pending> all_reduce(std::span<comm::Bf16>) override {
    return base::Error(base::Code::kIo, "none");
  }
  base::Result<comm::Pending> broadcast(std::span<std::byte>, int) override {
    return base::Error(base::Code::kIo, "none");
  }
  base::Result<comm::Pending> barrier() override { return base::Error(base::Code::kIo, "none"); }
  base::Result<void> wait(comm::Pending pending) override {
    const auto operation = operations_.extract(pending.ticket);
    REQUIRE(!operation.empty());
    operation.mapped().act();
    note_("await", operation.mapped().from, operation.mapped().to);
    return {};
  }
  bool idle() const { return operations_.empty(); }

 private:
  struct Operation {
    const void *from, *to;
    std::function<void()> act;
  };
  base::Result<comm::Pending> later(const char* what, const void* from, const void* to,
                                    std::function<void()> act) {
    operations_[++tickets_] = {from, to, std::move(act)};
    note_(what, from, to);
    return comm::Pending{tickets_};
  }

  int size_;
  Note note_;
  uint64_t tickets_ = 0;
  std::map<uint64_t, Operation> operations_;
};

// An engine on rank 0 that executes a step, and what it was seen to do, in the words of the plan. Block b's parameters
// are b + 1 everywhere; the n-th backward of every rank contributes n to every element of its block's gradient.
class Watched {
 public:
  explicit Watched(const tests::RandomStep& step)
      : step_(step),
        layout_(plan::make_layout(block_elements(step.shape), step.group_size)),
        state_(plan::sharded_state(layout_, step.options)),
        arena_(Arena::create(state_.bytes()).value()),
        gather_(step.group_size, [this](auto what, auto from, auto to) { note_gather(what, from, to); }),
        reduce_(step.group_size, [this](auto what, auto from, auto to) { note_reduce(what, from, to); }),
        replica_(2, [this](auto what, auto, auto to) { note_sum(what, to); }),
        engine_(layout_, {step.options}, {&gather_, &reduce_, step.shape.replicated ? &replica_ : nullptr},
                arena_) {
    for (size_t block = 0; block < layout_.blocks.size(); ++block) {
      const auto shard = of_shard(engine_.master(), static_cast<int>(block));
      std::fill(shard.begin(), shard.end(), static_cast<float>(block + 1));
    }
    engine_.publish();
  }

  void run() {
    engine_.begin(plan::StepPlan(step_.shape));
    for (int64_t micro_step = 0; micro_step < step_.shape.micro_steps; ++micro_step) {
      while (true) {
        const auto work = engine_.next();
        REQUIRE(work);
        if (!*work) break;
        compute(**work);
      }
      seen_.push_back(tests::sentence({.kind = Kind::kTurnEnds}));
    }
    REQUIRE(engine_.finish());
    CHECK((gather_.idle() && reduce_.idle() && replica_.idle()));
  }

  const std::vector<std::string>& seen() const { return seen_; }
  // Of computations that were given other parameters than the block's.
  int wrong_parameters() const { return wrong_parameters_; }
  // Elements of the gradient that are not the sum of all contributions.
  int wrong_gradients() {
    const int copies = step_.shape.replicated ? 2 : 1;
    int wrong = 0;
    for (int block = 0; block < layout_.block_count(); ++block) {
      const auto expected = static_cast<float>(contributed_[block] * step_.group_size * copies);
      const auto shard = of_shard(engine_.gradient(), block).first(kElements / 4);
      wrong +=
          static_cast<int>(std::count_if(shard.begin(), shard.end(), [&](float v) { return v != expected; }));
    }
    return wrong;
  }

 private:
  std::span<float> of_shard(std::span<float> flat, int block) const {
    const plan::BlockShards& shards = layout_.block(block);
    return flat.subspan(static_cast<size_t>(shards.shard_offset), static_cast<size_t>(shards.shard_elements));
  }
  // The block whose shard begins at an address; -1: none.
  int block_at(std::span<float> flat, const void* address) const {
    for (int block = 0; block < layout_.block_count(); ++block)
      if (of_shard(flat, block).data() == address) return block;
    return -1;
  }
  // The buffer of a list that begins at an address, when the arena gave them out one behind the other; -1: none.
  static int buffer_at(const std::byte* first, const std::vector<plan::Buffer>& buffers,
                       const void* address) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (first == address) return static_cast<int>(i);
      first += buffers[i].bytes();
    }
    return -1;
  }
  static int64_t bytes_of(const std::vector<plan::Buffer>& buffers) {
    int64_t bytes = 0;
    for (const plan::Buffer& buffer : buffers) bytes += buffer.bytes();
    return bytes;
  }
  const std::byte* first_slot() {
    return reinterpret_cast<std::byte*>(engine_.gradient().data()) + state_.gradients.bytes();
  }
  const std::byte* first_gradient() { return first_slot() + bytes_of(state_.gathered); }
  const std::byte* first_scratch() { return first_gradient() + bytes_of(state_.whole_gradients); }

  void see(const StepEvent& event) { seen_.push_back(tests::sentence(event)); }

  void note_gather(const std::string& what, const void* from, const void* to) {
    see({.kind = what == "gather" ? Kind::kGather : Kind::kAwaitGather,
         .block = block_at(engine_.master(), from),
         .slot = buffer_at(first_slot(), state_.gathered, to)});
  }
  void note_reduce(const std::string& what, const void* from, const void* to) {
    const int gradient = buffer_at(first_gradient(), state_.whole_gradients, from);
    if (what == "reduce") {
      const int shard = block_at(engine_.gradient(), to);
      CHECK((shard < 0 || shard == computed_));
      see({.kind = Kind::kReduce,
           .block = computed_,
           .gradient = gradient,
           .scratch = buffer_at(first_scratch(), state_.scratches, to)});
      reduced_[gradient] = computed_;
    } else {
      see({.kind = Kind::kAwaitReduce, .block = reduced_[gradient], .gradient = gradient});
    }
  }
  void note_sum(const std::string& what, const void* to) {
    see({.kind = what == "sum" ? Kind::kSumReplicas : Kind::kAwaitReplicas,
         .block = block_at(engine_.gradient(), to)});
  }

  void compute(const Work& work) {
    const std::span parameters(reinterpret_cast<const float*>(work.parameters.data()),
                               work.parameters.size() / sizeof(float));
    const auto right = [&](float value) { return value == static_cast<float>(work.block + 1); };
    if (!std::all_of(parameters.begin(), parameters.end(), right)) ++wrong_parameters_;
    computed_ = work.block;
    see({.kind = work.is_forward ? Kind::kForward : Kind::kBackward,
         .adds = work.adds,
         .block = work.block,
         .visit = work.visit,
         .slot = buffer_at(first_slot(), state_.gathered, parameters.data()),
         .gradient = work.is_forward
                         ? -1
                         : buffer_at(first_gradient(), state_.whole_gradients, work.gradient.data())});
    if (work.is_forward) return;
    contributed_[work.block] += ++backwards_;
    const auto contribution = static_cast<float>(backwards_);
    for (float& value : work.gradient) value = work.adds ? value + contribution : contribution;
  }

  tests::RandomStep step_;
  plan::ShardLayout layout_;
  plan::ShardedState state_;
  Arena arena_;
  LateCommunicator gather_, reduce_, replica_;
  Engine engine_;
  std::vector<std::string> seen_;
  std::map<int, int> reduced_;          // block by gradient buffer
  std::map<int, int64_t> contributed_;  // by block
  int64_t backwards_ = 0;
  int computed_ = -1, wrong_parameters_ = 0;
};

// Of the plan what can be seen from outside: additions are seen in their result.
std::vector<std::string> visible(const plan::StepShape& shape) {
  std::vector<std::string> words;
  for (const StepEvent& event : tests::events_of(plan::StepPlan(shape)))
    if (event.kind != Kind::kAdd) words.push_back(tests::sentence(event));
  return words;
}

}  // namespace

TEST_CASE("engine: of 500 random steps it does exactly what the plan says, with the plan's buffers") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const auto step = tests::random_step(seed);
    Watched engine(step);

    engine.run();

    CAPTURE(seed);
    REQUIRE_EQ(engine.seen(), visible(step.shape));
    CHECK_EQ(engine.wrong_parameters(), 0);
    if (step.shape.backward) CHECK_EQ(engine.wrong_gradients(), 0);
  }
}
