#include "runtime/plan/step.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/random_step.h"
#include "tests/support/step_sentences.h"

using namespace shardrun;
using plan::StepEvent;
using plan::StepShape;
using Kind = StepEvent::Kind;

namespace {

using Words = std::vector<std::string>;

Words plan_of(const StepShape& shape) {
  return tests::sentences(tests::events_of(plan::StepPlan(shape)));
}

// Says what is wrong with a plan, by following what its buffers hold; empty: nothing is.
class Follower {
 public:
  explicit Follower(const StepShape& shape) : shape_(shape) {
    slots_.resize(static_cast<size_t>(shape.buffers.gathered));
    gradients_.resize(static_cast<size_t>(shape.buffers.whole_gradients));
    scratches_.resize(static_cast<size_t>(shape.buffers.scratches));
    for (const int block : shape.visits) blocks_[block].expected += shape.backward ? shape.micro_steps : 0;
  }

  std::string follow(const std::vector<StepEvent>& events) {
    for (size_t i = 0; i < events.size() && wrong_.empty(); ++i) {
      see(events[i]);
      if (!wrong_.empty())
        wrong_ = "event " + std::to_string(i) + ", " + tests::sentence(events[i]) + ": " + wrong_;
    }
    if (wrong_.empty()) see_end();
    return wrong_;
  }

 private:
  enum class State { kFree, kFilling, kFull };
  struct Slot {
    int block = -1;
    State state = State::kFree;
  };
  struct Gradient {
    int block = -1, scratch = -1;
    State state = State::kFree;
  };
  struct Block {
    int64_t expected = 0, started = 0, landed = 0;
    int sums = 0, sums_over = 0;
  };

  void need(bool condition, const char* otherwise) {
    if (!condition && wrong_.empty()) wrong_ = otherwise;
  }
  template <typename T>
  T* at(std::vector<T>& buffers, int index) {
    need(index >= 0 && static_cast<size_t>(index) < buffers.size(), "there is no such buffer");
    return wrong_.empty() ? &buffers[static_cast<size_t>(index)] : nullptr;
  }

  void see(const StepEvent& e) {
    switch (e.kind) {
      case Kind::kGather:
        return gather(e);
      case Kind::kAwaitGather:
        return await_gather(e);
      case Kind::kForward:
      case Kind::kBackward:
        return compute(e);
      case Kind::kReduce:
        return reduce(e);
      case Kind::kAwaitReduce:
        return await_reduce(e);
      case Kind::kAdd:
        return add(e);
      case Kind::kSumReplicas:
        need(shape_.replicated, "there are no replicas");
        need(blocks_[e.block].landed == blocks_[e.block].expected, "contributions are missing");
        need(++blocks_[e.block].sums == 1, "summed twice");
        return;
      case Kind::kAwaitReplicas:
        need(++blocks_[e.block].sums_over == blocks_[e.block].sums, "not under way");
        return;
      case Kind::kTurnEnds:
        need(visits_ == shape_.visits.size() * (shape_.backward ? 2 : 1), "visits are missing");
        visits_ = 0;
        ++micro_steps_;
        return;
    }
  }

  void gather(const StepEvent& e) {
    for (const Slot& slot : slots_) need(slot.block != e.block, "another slot holds it");
    if (Slot* slot = at(slots_, e.slot)) {
      need(slot->state != State::kFilling, "the slot is being filled");
      const auto& slots = shape_.buffers.slots;
      need(slots.empty() || (e.slot >= slots[e.block].first && e.slot < slots[e.block].last), "not its slot");
      *slot = {e.block, State::kFilling};
    }
  }

  void await_gather(const StepEvent& e) {
    if (Slot* slot = at(slots_, e.slot)) {
      need(slot->block == e.block && slot->state == State::kFilling, "not under way");
      slot->state = State::kFull;
    }
  }

  void compute(const StepEvent& e) {
    const size_t forward = shape_.visits.size();
    const bool is_forward = visits_ < forward;
    const size_t visit = is_forward ? visits_ : 2 * forward - 1 - visits_;
    ++visits_;
    need((e.kind == Kind::kForward) == is_forward && e.visit == static_cast<int>(visit), "not its turn");
    need(wrong_.empty() && e.block == shape_.visits[visit], "another block's visit");
    const bool only_written =
        shape_.looks_up && !is_forward && visit == 0 && micro_steps_ + 1 == shape_.micro_steps;
    if (slots_.empty() || only_written) {
      need(e.slot == -1, "nothing is gathered");
    } else if (const Slot* slot = at(slots_, e.slot)) {
      need(slot->block == e.block && slot->state == State::kFull, "the block is not there");
    }
    if (!is_forward) contribute(e);
  }

  void contribute(const StepEvent& e) {
    Block& block = blocks_[e.block];
    if (gradients_.empty()) {
      need(e.gradient == -1 && e.adds == (block.landed > 0), "adds to what is not there, or writes over it");
      ++block.landed;
    } else if (Gradient* gradient = at(gradients_, e.gradient)) {
      need(!e.adds && gradient->state == State::kFree, "the gradient buffer is in use");
      *gradient = {e.block, -1, State::kFull};
    }
  }

  void reduce(const StepEvent& e) {
    Gradient* const gradient = at(gradients_, e.gradient);
    if (gradient == nullptr) return;
    need(gradient->block == e.block && gradient->state == State::kFull, "the gradient is not there");
    *gradient = {e.block, e.scratch, State::kFilling};
    need((e.scratch < 0) == (blocks_[e.block].started++ == 0),
         "only the first contribution lands in the shard");
    if (e.scratch < 0) return;
    if (int* const scratch = at(scratches_, e.scratch)) {
      need(*scratch == 0, "the scratch is in use");
      *scratch = -1;
    }
  }

  void await_reduce(const StepEvent& e) {
    Gradient* const gradient = at(gradients_, e.gradient);
    if (gradient == nullptr) return;
    need(gradient->block == e.block && gradient->state == State::kFilling, "not under way");
    if (gradient->scratch < 0)
      ++blocks_[e.block].landed;
    else if (int* const scratch = at(scratches_, gradient->scratch))
      *scratch = e.block + 1;
    *gradient = {};
  }

  void add(const StepEvent& e) {
    int* const scratch = at(scratches_, e.scratch);
    if (scratch == nullptr) return;
    need(*scratch == e.block + 1, "the contribution is not there");
    need(blocks_[e.block].landed++ > 0, "there is nothing to add to yet");
    *scratch = 0;
  }

  void see_end() {
    need(micro_steps_ == shape_.micro_steps, "micro-steps are missing");
    for (const Slot& slot : slots_) need(slot.state != State::kFilling, "a gather was never awaited");
    for (const Gradient& gradient : gradients_)
      need(gradient.state == State::kFree, "a gradient was never reduced");
    for (const auto& [index, block] : blocks_) {
      need(block.landed == block.expected, "a contribution is missing");
      need(block.sums == (shape_.replicated && shape_.backward ? 1 : 0), "a sum over replicas is missing");
      need(block.sums_over == block.sums, "a sum over replicas was never awaited");
    }
  }

  const StepShape& shape_;
  std::vector<Slot> slots_;
  std::vector<Gradient> gradients_;
  std::vector<int> scratches_;  // 0: free; -1: being filled; else 1 + the block whose contribution it holds
  std::map<int, Block> blocks_;
  size_t visits_ = 0;
  int64_t micro_steps_ = 0;
  std::string wrong_;
};

}  // namespace

TEST_CASE("step: a rank alone computes with its shard and adds later contributions where the first one is") {
  const Words plan = plan_of({.visits = {0, 1}, .micro_steps = 2});

  CHECK(plan == Words{"forward 0 of 0", "forward 1 of 1", "backward 1 of 1", "backward 0 of 0", "turn ends",
                      "forward 0 of 0", "forward 1 of 1", "backward 1 of 1 adds", "backward 0 of 0 adds",
                      "turn ends"});
}

TEST_CASE("step: with one block ahead two ranks gather beside computing, and nothing at the turn") {
  const Words plan =
      plan_of({.visits = {0, 1, 2}, .prefetch = 1, .buffers = {.gathered = 2, .whole_gradients = 2}});

  CHECK(plan == Words{"gather 0 into slot 0",
                      "gather 1 into slot 1",
                      "await 0 in slot 0",
                      "forward 0 of 0 from slot 0",
                      "gather 2 into slot 0",
                      "await 1 in slot 1",
                      "forward 1 of 1 from slot 1",
                      "await 2 in slot 0",
                      "forward 2 of 2 from slot 0",
                      "backward 2 of 2 from slot 0 into gradient 0",
                      "reduce 2 from gradient 0",
                      "gather 0 into slot 0",
                      "backward 1 of 1 from slot 1 into gradient 1",
                      "reduce 1 from gradient 1",
                      "await 0 in slot 0",
                      "await 2 in gradient 0",
                      "backward 0 of 0 from slot 0 into gradient 0",
                      "reduce 0 from gradient 0",
                      "turn ends",
                      "await 1 in gradient 1",
                      "await 0 in gradient 0"});
}

TEST_CASE("step: a table that is only looked up is not gathered for its last backward") {
  const Words plan = plan_of({.visits = {0, 1, 2},
                              .micro_steps = 2,
                              .buffers = {.gathered = 2, .whole_gradients = 2, .scratches = 2},
                              .looks_up = true});
  const auto gathers_of_table = [](auto begin, auto end) {
    return std::count(begin, end, "gather 0 into slot 0") + std::count(begin, end, "gather 0 into slot 1");
  };
  const auto second = std::find(plan.begin(), plan.end(), "turn ends") + 1;

  CHECK_EQ(gathers_of_table(plan.begin(), second), 2);  // the second finds it in forward
  CHECK_EQ(gathers_of_table(second, plan.end()), 0);
  CHECK_EQ(std::count(second, plan.end(), "backward 0 of 0 into gradient 1"), 1);
}

TEST_CASE("step: without a block ahead every gather is awaited at once, in the one slot") {
  const Words plan =
      plan_of({.visits = {0, 1}, .backward = false, .prefetch = 0, .buffers = {.gathered = 1}});

  CHECK(plan == Words{"gather 0 into slot 0", "await 0 in slot 0", "forward 0 of 0 from slot 0",
                      "gather 1 into slot 0", "await 1 in slot 0", "forward 1 of 1 from slot 0",
                      "turn ends"});
}

TEST_CASE("step: with a slot for every block each is gathered once, however many micro-steps there are") {
  const auto events = tests::events_of(plan::StepPlan(
      {.visits = {0, 1, 2, 3},
       .micro_steps = 5,
       .buffers = {
           .gathered = 4, .whole_gradients = 2, .scratches = 2, .slots = {{0, 1}, {1, 2}, {2, 3}, {3, 4}}}}));

  std::vector<int> gathered;
  for (const StepEvent& event : events) {
    if (event.kind != Kind::kGather) continue;
    CHECK(event.slot == event.block);
    gathered.push_back(event.block);
  }
  CHECK(gathered == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE(
    "step: embedding and head take turns in a slot of their own, and two layers are still there at the "
    "turn") {
  const Words plan = plan_of(
      {.visits = {0, 1, 2, 3, 4},
       .buffers = {.gathered = 3, .whole_gradients = 2, .slots = {{2, 3}, {0, 2}, {0, 2}, {0, 2}, {2, 3}}}});
  const auto turn = std::find(plan.begin(), plan.end(), "forward 3 of 3 from slot 0");

  CHECK(Words(plan.begin(), plan.begin() + 3) ==
        Words{"gather 0 into slot 2", "gather 1 into slot 0", "await 0 in slot 2"});
  CHECK(std::find(plan.begin(), turn, "gather 4 into slot 2") < turn);
  CHECK(Words(turn, turn + 10) ==
        Words{"forward 3 of 3 from slot 0", "await 4 in slot 2", "forward 4 of 4 from slot 2",
              "backward 4 of 4 from slot 2 into gradient 0", "reduce 4 from gradient 0",
              "backward 3 of 3 from slot 0 into gradient 1", "reduce 3 from gradient 1",
              "gather 1 into slot 0", "await 4 in gradient 0",
              "backward 2 of 2 from slot 1 into gradient 0"});
}

TEST_CASE(
    "step: a block that stays is neither gathered nor reduced, and the one behind it is gathered ahead") {
  const Words plan = plan_of({.visits = {0, 1, 2},
                              .buffers = {.gathered = 2, .whole_gradients = 2},
                              .replicated = true,
                              .stays = {false, true, false}});

  CHECK(plan == Words{"gather 0 into slot 0",
                      "gather 2 into slot 1",
                      "await 0 in slot 0",
                      "forward 0 of 0 from slot 0",
                      "forward 1 of 1",
                      "await 2 in slot 1",
                      "forward 2 of 2 from slot 1",
                      "backward 2 of 2 from slot 1 into gradient 0",
                      "reduce 2 from gradient 0",
                      "backward 1 of 1",
                      "sum 1 over replicas",
                      "backward 0 of 0 from slot 0 into gradient 1",
                      "reduce 0 from gradient 1",
                      "turn ends",
                      "await 2 in gradient 0",
                      "sum 2 over replicas",
                      "await 0 in gradient 1",
                      "sum 0 over replicas",
                      "await 1 of replicas",
                      "await 2 of replicas",
                      "await 0 of replicas"});
}

TEST_CASE(
    "step: a second micro-step finds the first blocks still there, and adds its contributions from "
    "scratches") {
  const Words plan = plan_of({.visits = {0, 1, 2},
                              .micro_steps = 2,
                              .prefetch = 0,
                              .buffers = {.gathered = 1, .whole_gradients = 2, .scratches = 2}});
  const auto second = std::find(plan.begin(), plan.end(), "turn ends") + 1;

  CHECK(Words(second, plan.end()) == Words{"forward 0 of 0 from slot 0",
                                           "gather 1 into slot 0",
                                           "await 1 in slot 0",
                                           "forward 1 of 1 from slot 0",
                                           "gather 2 into slot 0",
                                           "await 2 in slot 0",
                                           "forward 2 of 2 from slot 0",
                                           "await 1 in gradient 1",
                                           "backward 2 of 2 from slot 0 into gradient 1",
                                           "reduce 2 from gradient 1 into scratch 1",
                                           "gather 1 into slot 0",
                                           "await 1 in slot 0",
                                           "await 0 in gradient 0",
                                           "backward 1 of 1 from slot 0 into gradient 0",
                                           "reduce 1 from gradient 0 into scratch 0",
                                           "gather 0 into slot 0",
                                           "await 0 in slot 0",
                                           "await 2 in gradient 1",
                                           "add 2 from scratch 1",
                                           "backward 0 of 0 from slot 0 into gradient 1",
                                           "reduce 0 from gradient 1 into scratch 1",
                                           "turn ends",
                                           "await 1 in gradient 0",
                                           "add 1 from scratch 0",
                                           "await 0 in gradient 1",
                                           "add 0 from scratch 1"});
}

TEST_CASE("step: replicas sum a block once, as soon as its last contribution is reduced") {
  const Words plan = plan_of({.visits = {0, 1},
                              .prefetch = 1,
                              .buffers = {.gathered = 2, .whole_gradients = 2},
                              .replicated = true});
  const auto turn = std::find(plan.begin(), plan.end(), "reduce 1 from gradient 0");

  CHECK(Words(turn, plan.end()) ==
        Words{"reduce 1 from gradient 0", "backward 0 of 0 from slot 0 into gradient 1",
              "reduce 0 from gradient 1", "turn ends", "await 1 in gradient 0", "sum 1 over replicas",
              "await 0 in gradient 1", "sum 0 over replicas", "await 1 of replicas", "await 0 of replicas"});
}

TEST_CASE(
    "step: replicas that shard nothing sum a block when its last backward is computed, beside the next") {
  const Words plan = plan_of({.visits = {0, 1}, .micro_steps = 2, .replicated = true});
  const auto second = std::find(plan.begin(), plan.end(), "turn ends") + 1;

  CHECK(Words(second, plan.end()) == Words{"forward 0 of 0", "forward 1 of 1", "backward 1 of 1 adds",
                                           "sum 1 over replicas", "backward 0 of 0 adds",
                                           "sum 0 over replicas", "turn ends", "await 1 of replicas",
                                           "await 0 of replicas"});
}

TEST_CASE("step: a tied block is reduced twice; the second contribution is added, and then replicas sum it") {
  const Words plan = plan_of({.visits = {0, 1, 0},
                              .prefetch = 1,
                              .buffers = {.gathered = 2, .whole_gradients = 2, .scratches = 1},
                              .replicated = true});
  const auto turn = std::find(plan.begin(), plan.end(), "forward 2 of 0 from slot 0") + 1;

  CHECK(Words(turn, plan.end()) ==
        Words{"backward 2 of 0 from slot 0 into gradient 0", "reduce 0 from gradient 0",
              "backward 1 of 1 from slot 1 into gradient 1", "reduce 1 from gradient 1",
              "await 0 in gradient 0", "backward 0 of 0 from slot 0 into gradient 0",
              "reduce 0 from gradient 0 into scratch 0", "turn ends", "await 1 in gradient 1",
              "sum 1 over replicas", "await 0 in gradient 0", "add 0 from scratch 0", "sum 0 over replicas",
              "await 1 of replicas", "await 0 of replicas"});
}

TEST_CASE("step: two blocks that are visited again share the one scratch in turn") {
  const Words plan =
      plan_of({.visits = {0, 1, 0, 1},
               .prefetch = 0,
               .buffers = {.gathered = 2, .whole_gradients = 2, .scratches = 1, .slots = {{0, 1}, {1, 2}}}});
  const auto again = std::find(plan.begin(), plan.end(), "backward 1 of 1 from slot 1 into gradient 0");

  CHECK(Words(again, plan.end()) ==
        Words{"backward 1 of 1 from slot 1 into gradient 0", "reduce 1 from gradient 0 into scratch 0",
              "await 0 in gradient 1", "backward 0 of 0 from slot 0 into gradient 1", "await 1 in gradient 0",
              "add 1 from scratch 0", "reduce 0 from gradient 1 into scratch 0", "turn ends",
              "await 0 in gradient 1", "add 0 from scratch 0"});
}

TEST_CASE("step: a validation goes forward only and shares what is gathered among its passes") {
  const Words plan = plan_of({.visits = {0, 1},
                              .micro_steps = 2,
                              .backward = false,
                              .buffers = {.gathered = 2, .whole_gradients = 2},
                              .replicated = true});

  CHECK(plan == Words{"gather 0 into slot 0", "gather 1 into slot 1", "await 0 in slot 0",
                      "forward 0 of 0 from slot 0", "await 1 in slot 1", "forward 1 of 1 from slot 1",
                      "turn ends", "forward 0 of 0 from slot 0", "forward 1 of 1 from slot 1", "turn ends"});
}

TEST_CASE("step: of 500 random steps each computes with what is there and reduces every contribution once") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const auto step = tests::random_step(seed);

    const std::string wrong = Follower(step.shape).follow(tests::events_of(plan::StepPlan(step.shape)));

    CAPTURE(seed);
    CHECK_EQ(wrong, "");
  }
}

TEST_CASE(
    "step: what follows a plan finds every event that is left out, and every two of a block that are "
    "swapped") {
  const StepShape shape{.visits = {0, 1, 2, 0},
                        .micro_steps = 2,
                        .prefetch = 1,
                        .buffers = {.gathered = 2, .whole_gradients = 2, .scratches = 2},
                        .replicated = true};
  const auto events = tests::events_of(plan::StepPlan(shape));
  REQUIRE_EQ(Follower(shape).follow(events), "");
  for (size_t i = 0; i < events.size(); ++i) {
    auto without = events;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    CAPTURE(tests::sentence(events[i]));
    CHECK(Follower(shape).follow(without) != "");
  }
  for (size_t i = 1; i < events.size(); ++i) {
    if (events[i].block != events[i - 1].block) continue;
    auto swapped = events;
    std::swap(swapped[i], swapped[i - 1]);
    CAPTURE(tests::sentence(events[i]));
    CHECK(Follower(shape).follow(swapped) != "");
  }
}
