#include "runtime/trainer/shard/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "tests/fakes/thread_world.h"
#include "tests/support/bf16_number.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace shardrun::shard;
using plan::BlockShards;
using plan::ElementRange;
using plan::make_layout;
using plan::ShardLayout;

namespace {

const std::vector<int64_t> kBlocks{70, 200, 33, 64};

class CountingCommunicator : public training::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  int operations = 0;

 private:
  base::Result<comm::Pending> begin(std::string_view, size_t, const Start& start) override {
    ++operations;
    return start();
  }
};

struct Rig {
  Rig(int group_size, const EngineOptions& options, comm::Communicator& gather, comm::Communicator& reduce,
      comm::Communicator* replica = nullptr)
      : layout(make_layout(kBlocks, group_size)),
        state(options.state),
        arena(Arena::create(plan::sharded_state(layout, options.state).bytes()).value()),
        engine(layout, options, {&gather, &reduce, replica}, arena),
        replicated(replica != nullptr) {}

  // Writes 1000·b + e + `offset` to element e of block b.
  void fill_master(int rank, float offset) {
    for (int block = 0; block < layout.block_count(); ++block) {
      const ElementRange owned = layout.owned(block, rank);
      for (int64_t i = 0; i < owned.count(); ++i) {
        engine.master()[static_cast<size_t>(layout.block(block).shard_offset + i)] =
            static_cast<float>(1000 * block + owned.begin + i) + offset;
      }
    }
    engine.publish();
  }

  // Begins a step of these visits.
  void begin(std::vector<int> visits, int64_t micro_steps, bool backward) {
    engine.begin(
        plan::StepPlan({.visits = std::move(visits),
                        .micro_steps = micro_steps,
                        .backward = backward,
                        .prefetch = state.prefetch,
                        .buffers = plan::buffer_counts(layout.group_size, layout.block_count(), state),
                        .replicated = replicated}));
  }

  // Computes a step; `see` gets every work. Returns what ended it.
  base::Result<void> run(std::vector<int> visits, int64_t micro_steps, bool backward,
                         const std::function<void(int64_t micro_step, const Work&)>& see) {
    begin(std::move(visits), micro_steps, backward);
    for (int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
      while (true) {
        const auto work = engine.next();
        if (!work) return work.error();
        if (!*work) break;
        see(micro_step, **work);
      }
    }
    return engine.finish();
  }

  // Whether a block's parameters are what fill_master wrote on all ranks.
  static bool right(const Work& work, float offset) {
    std::vector<float> values(work.parameters.size() / sizeof(float));
    std::memcpy(values.data(), work.parameters.data(), work.parameters.size());
    bool same = values.size() == static_cast<size_t>(kBlocks[static_cast<size_t>(work.block)]);
    for (size_t i = 0; i < values.size(); ++i)
      same = same && values[i] == static_cast<float>(1000 * work.block) + static_cast<float>(i) + offset;
    return same;
  }

  ShardLayout layout;
  plan::StateOptions state;
  Arena arena;
  Engine engine;
  bool replicated;
};

// Returns the gradient that `rank` computes for an element in a micro-step: whole numbers, so that sums are exact.
float gradient_of(int rank, int micro_step, int block, int64_t element) {
  return static_cast<float>((rank + 1) * 100 + micro_step * 10 + block) + static_cast<float>(element);
}

}  // namespace

TEST_CASE("engine: every rank computes with whole blocks, before and after a publish") {
  for (int group_size : {1, 2, 3, 5}) {
    for (int prefetch : {0, 1}) {
      fakes::ThreadWorld world(group_size);
      std::vector<int> right(static_cast<size_t>(group_size), 0);
      world.run([&](int rank, std::span<comm::Communicator* const> channels) {
        Rig rig(group_size, {{.prefetch = prefetch}}, *channels[0], *channels[1]);
        for (float offset : {0.0F, 0.5F}) {
          rig.fill_master(rank, offset);
          REQUIRE(rig.run({0, 1, 2, 3}, 1, /*backward=*/true, [&](int64_t, const Work& work) {
            right[static_cast<size_t>(rank)] += Rig::right(work, offset) ? 1 : 0;
          }));
        }
      });
      for (const int rank_right : right) CHECK_EQ(rank_right, 2 * 8);
    }
  }
}

TEST_CASE(
    "engine: with prefetch a forward and a backward gather each block at most twice, and the turn not at "
    "all") {
  fakes::ThreadWorld world(2);
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    CountingCommunicator gather(*channels[0]), reduce(*channels[1]);
    Rig rig(2, {{.prefetch = 1}}, gather, reduce);
    rig.fill_master(rank, 0.0F);
    REQUIRE(rig.run({0, 1, 2, 3}, 1, /*backward=*/true, [](int64_t, const Work&) {}));
    // Forward 0 1 2 3; backward finds 3 and 2 still there and gathers 1 0.
    if (rank == 0) CHECK(gather.operations == 6);
  });
}

TEST_CASE("engine: gradients are summed over ranks and micro-steps, and padding stays zero") {
  for (int group_size : {1, 2, 3}) {
    fakes::ThreadWorld world(group_size);
    std::vector<int> wrong(static_cast<size_t>(group_size), 0);
    world.run([&](int rank, std::span<comm::Communicator* const> channels) {
      Rig rig(group_size, {{.accumulates = true}}, *channels[0], *channels[1]);
      int& mine_wrong = wrong[static_cast<size_t>(rank)];
      rig.fill_master(rank, 0.0F);
      for (int optimizer_step = 0; optimizer_step < 2; ++optimizer_step) {
        REQUIRE(rig.run({0, 1, 2, 3}, 3, /*backward=*/true, [&](int64_t micro_step, const Work& work) {
          for (size_t i = 0; i < work.gradient.size(); ++i) {
            const float more =
                gradient_of(rank, static_cast<int>(micro_step), work.block, static_cast<int64_t>(i));
            work.gradient[i] = work.adds ? work.gradient[i] + more : more;
          }
        }));
        for (int block = 0; block < 4; ++block) {
          const BlockShards& shards = rig.layout.block(block);
          const ElementRange owned = rig.layout.owned(block, rank);
          for (int64_t i = 0; i < shards.shard_elements; ++i) {
            float expected = 0.0F;
            for (int from = 0; from < group_size && i < owned.count(); ++from) {
              for (int micro_step = 0; micro_step < 3; ++micro_step) {
                expected += gradient_of(from, micro_step, block, owned.begin + i);
              }
            }
            const float actual = rig.engine.gradient()[static_cast<size_t>(shards.shard_offset + i)];
            mine_wrong += actual == expected ? 0 : 1;
          }
        }
      }
    });
    CAPTURE(group_size);
    for (int rank_wrong : wrong) CHECK(rank_wrong == 0);
  }
}

TEST_CASE(
    "engine: in bf16 a contribution is rounded before it is summed, sums are rounded, contributions add in "
    "fp32") {
  using tests::Bf16Number;
  constexpr int kRanks = 4, kMicroSteps = 3;
  const auto contribution = [](int rank, int64_t micro_step, int block, int64_t element) {
    const auto number = static_cast<float>((rank + 1) * 100 + static_cast<int>(micro_step) * 10 + block);
    return (number + static_cast<float>(element)) / 7.0F;  // bf16 has none of these
  };
  fakes::ThreadWorld world(kRanks);  // two pairs that share a copy of the state each
  fakes::ThreadWorld first(2), second(2), even(2), odd(2);
  std::vector<int> wrong(kRanks, 0);
  world.run([&](int rank, std::span<comm::Communicator* const>) {
    const int shard_rank = rank % 2, copy = rank / 2;
    fakes::ThreadWorld& shard = copy == 0 ? first : second;
    fakes::ThreadWorld& replica = shard_rank == 0 ? even : odd;
    const auto gather = shard.communicator(shard_rank, 0), reduce = shard.communicator(shard_rank, 1);
    const auto sums = replica.communicator(copy, 0);
    Rig rig(2, {.state = {.accumulates = true}, .reduce = base::DType::kBf16}, *gather, *reduce, sums.get());
    rig.fill_master(shard_rank, 0.0F);
    REQUIRE(rig.run({0, 1, 2, 3}, kMicroSteps, /*backward=*/true, [&](int64_t micro_step, const Work& work) {
      for (size_t i = 0; i < work.gradient.size(); ++i)
        work.gradient[i] = contribution(rank, micro_step, work.block, static_cast<int64_t>(i));
    }));
    for (int block = 0; block < 4; ++block) {
      const BlockShards& shards = rig.layout.block(block);
      const ElementRange owned = rig.layout.owned(block, shard_rank);
      for (int64_t i = 0; i < shards.shard_elements; ++i) {
        const auto of_copy = [&](int which) {
          float sum = 0.0F;
          for (int64_t micro_step = 0; i < owned.count() && micro_step < kMicroSteps; ++micro_step) {
            const auto of_rank = [&](int from) {
              return Bf16Number::nearest(contribution(2 * which + from, micro_step, block, owned.begin + i));
            };
            sum += (of_rank(0) + of_rank(1)).value();
          }
          return Bf16Number::nearest(sum);
        };
        const float expected = (of_copy(0) + of_copy(1)).value();
        wrong[rank] +=
            rig.engine.gradient()[static_cast<size_t>(shards.shard_offset + i)] == expected ? 0 : 1;
      }
    }
  });
  CHECK(wrong == std::vector<int>(kRanks, 0));
}

TEST_CASE(
    "engine: a change of masters is made unit by unit, no later than a unit is gathered, and gradients wait "
    "for it") {
  for (const int group_size : {1, 2, 3}) {
    fakes::ThreadWorld world(group_size);
    std::vector<int> wrong(static_cast<size_t>(group_size), 0);
    world.run([&](int rank, std::span<comm::Communicator* const> channels) {
      CountingCommunicator gather(*channels[0]), reduce(*channels[1]);
      Rig rig(group_size, {{.prefetch = 1}}, gather, reduce);
      rig.fill_master(rank, 0.0F);
      const auto masters = rig.engine.master();
      const auto gradients = rig.engine.gradient();
      std::vector<int> gathered_before;  // operations that were started before each change
      float offset = 0.0F;
      const auto change = [&](int64_t begin, int64_t count) {
        gathered_before.push_back(gather.operations);
        for (int block = 0; block < rig.layout.block_count(); ++block) {
          if (rig.layout.block(block).shard_offset != begin) continue;
          CHECK_EQ(rig.layout.block(block).shard_elements, count);
          for (int64_t i = 0; i < rig.layout.owned(block, rank).count(); ++i) {
            wrong[static_cast<size_t>(rank)] += gradients[begin + i] == offset ? 0 : 1;
            masters[begin + i] += 0.5F;
          }
        }
      };
      const auto step = [&] {
        REQUIRE(rig.run({2, 0, 1, 3}, 1, /*backward=*/true, [&](int64_t, const Work& work) {
          wrong[static_cast<size_t>(rank)] += Rig::right(work, offset) ? 0 : 1;
          for (float& value : work.gradient) value = rank == 0 ? offset + 0.5F : 0.0F;
        }));
      };
      step();
      for (offset = 0.5F; offset < 2.0F; offset += 0.5F) {
        gathered_before.clear();
        gather.operations = 0;
        rig.engine.publish(change);
        step();
        const auto expected = group_size == 1 ? std::vector<int>{0, 0, 0, 0} : std::vector<int>{0, 1, 2, 2};
        CHECK_EQ(gathered_before, expected);
        CHECK_EQ(rig.engine.master()[0],
                 1000.0F * 0 + static_cast<float>(rig.layout.owned(0, rank).begin) + offset);
      }
      gathered_before.clear();
      rig.engine.publish(change);
      rig.engine.settle();
      rig.engine.settle();
      CHECK_EQ(gathered_before.size(), 4);
    });
    CHECK_EQ(wrong, std::vector<int>(static_cast<size_t>(group_size), 0));
  }
}

TEST_CASE("engine: a group of one never talks to its communicators and needs no block buffers") {
  fakes::ThreadWorld world(1);
  world.run([&](int, std::span<comm::Communicator* const> channels) {
    CountingCommunicator gather(*channels[0]), reduce(*channels[1]);
    Rig rig(1, {{.prefetch = 1}}, gather, reduce);
    rig.fill_master(0, 0.0F);
    REQUIRE(rig.run({0, 1, 2, 3}, 1, /*backward=*/true,
                    [](int64_t, const Work& work) { CHECK(Rig::right(work, 0.0F)); }));

    CHECK(gather.operations + reduce.operations == 0);
    CHECK(rig.arena.used_bytes() == 2 * Arena::bytes_of<float>(rig.layout.flat_shard_elements));
  });
}

TEST_CASE(
    "engine: blocks in bf16 have the same bytes, whether a copy of the masters is kept or made on the way") {
  for (const int group_size : {1, 2, 3}) {
    for (const bool keeps_parameters : {false, true}) {
      fakes::ThreadWorld world(group_size);
      std::vector<int> wrong(static_cast<size_t>(group_size), 0);
      world.run([&](int rank, std::span<comm::Communicator* const> channels) {
        EngineOptions options{{.compute_bytes = 2, .keeps_parameters = keeps_parameters}};
        Rig kept(group_size, options, *channels[0], *channels[1]);
        options.state.keeps_compute_copy = false;
        Rig made(group_size, options, *channels[0], *channels[1]);
        for (const float offset : {0.0F, 0.3F}) {
          kept.fill_master(rank, offset);
          made.fill_master(rank, offset);
          kept.begin({0, 1, 2, 3}, 1, /*backward=*/true);
          made.begin({0, 1, 2, 3}, 1, /*backward=*/true);
          for (int visit = 0; visit < 8; ++visit) {
            const auto a = kept.engine.next(), b = made.engine.next();
            REQUIRE((a && *a && b && *b));
            const auto of_kept = (*a)->parameters, of_made = (*b)->parameters;
            if (!std::equal(of_kept.begin(), of_kept.end(), of_made.begin(), of_made.end()))
              ++wrong[static_cast<size_t>(rank)];
          }
          for (Rig* const rig : {&kept, &made}) {
            REQUIRE(rig->engine.next());
            REQUIRE(rig->engine.finish());
          }
        }
      });
      CHECK_EQ(wrong, std::vector<int>(static_cast<size_t>(group_size), 0));
    }
  }
}

TEST_CASE("engine: it uses exactly the bytes it planned, under every option") {
  for (int group_size : {1, 2}) {
    for (const plan::StateOptions& state :
         std::initializer_list<plan::StateOptions>{{.prefetch = 0},
                                                   {.accumulates = true},
                                                   {.compute_bytes = 2, .prefetch = 0, .accumulates = true},
                                                   {.compute_bytes = 2, .revisits = true},
                                                   {.compute_bytes = 2, .keeps_parameters = true},
                                                   {.compute_bytes = 2, .keeps_compute_copy = false}}) {
      fakes::ThreadWorld world(group_size);
      const auto gather = world.communicator(0, 0), reduce = world.communicator(0, 1);
      const Rig rig(group_size, {state}, *gather, *reduce);
      CHECK(rig.arena.used_bytes() == rig.arena.planned_bytes());
    }
  }
}

TEST_CASE("engine: a rank alone adds later contributions where the first one is, without memory for them") {
  fakes::ThreadWorld world(1);
  const auto gather = world.communicator(0, 0), reduce = world.communicator(0, 1);
  Rig rig(1, {{.accumulates = true, .revisits = true}}, *gather, *reduce);
  rig.fill_master(0, 0.0F);
  const float* const there = rig.engine.gradient().data() + rig.layout.block(1).shard_offset;
  std::vector<bool> adds;
  const auto see = [&](int64_t, const Work& work) {
    if (work.is_forward || work.block != 1) return;
    CHECK(work.gradient.data() == there);
    adds.push_back(work.adds);
  };

  REQUIRE(rig.run({0, 1, 2, 3, 1}, 2, /*backward=*/true, see));
  REQUIRE(rig.run({0, 1, 2, 3, 1}, 1, /*backward=*/true, see));

  CHECK(adds == std::vector<bool>{false, true, true, true, false, true});
  CHECK(rig.arena.used_bytes() == 2 * Arena::bytes_of<float>(rig.layout.flat_shard_elements));
}

TEST_CASE("engine: a lost peer ends a step with an error that names the rank and the block") {
  fakes::ThreadWorld world(2);
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    if (rank == 1) return world.kill(1);
    Rig rig(2, {{.prefetch = 0}}, *channels[0], *channels[1]);
    rig.fill_master(rank, 0.0F);

    const auto ended = rig.run({2, 0, 1, 3}, 1, /*backward=*/true, [](int64_t, const Work&) {});

    REQUIRE(!ended);
    CHECK(ended.error().code() == base::Code::kPeerLost);
    CHECK(ended.error().to_string().find("gathering the parameters of block 2: operation #1: lost rank 1") ==
          0);
  });
}
