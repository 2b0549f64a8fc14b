#include "runtime/trainer/shard/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/fakes/thread_world.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace shardrun::shard;
using plan::BlockShards;
using plan::ElementRange;
using plan::make_layout;
using plan::ShardLayout;

namespace {

const std::vector<int64_t> kBlocks{70, 200, 33, 64};

class CountingCommunicator : public training::SpoiledCommunicator {
 public:
  using SpoiledCommunicator::SpoiledCommunicator;
  base::Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    ++operations;
    return inner_.all_gather(mine, all);
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    ++operations;
    return inner_.reduce_scatter(full, mine);
  }

  int operations = 0;
};

struct Rig {
  Rig(int group_size, const EngineOptions& options, comm::Communicator& gather, comm::Communicator& reduce)
      : layout(make_layout(kBlocks, group_size)),
        arena(Arena::create(plan::sharded_state(layout, options.state()).bytes()).value()),
        engine(layout, options, {&gather, &reduce}, arena) {}

  // Element e of block b is 1000·b + e + `offset`.
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

  // Acquires a block and says whether it holds what fill_master wrote on all ranks.
  bool acquired_is(int block, int next_block, float offset) {
    const int upcoming[] = {next_block};
    const auto bytes = engine.acquire(block, std::span(upcoming).first(next_block >= 0 ? 1 : 0));
    REQUIRE(bytes);
    std::vector<float> values(bytes->size() / sizeof(float));
    std::memcpy(values.data(), bytes->data(), bytes->size());
    bool same = values.size() == static_cast<size_t>(kBlocks[static_cast<size_t>(block)]);
    for (size_t i = 0; i < values.size(); ++i) {
      same = same && values[i] == static_cast<float>(1000 * block) + static_cast<float>(i) + offset;
    }
    engine.release(block);
    return same;
  }

  ShardLayout layout;
  Arena arena;
  Engine engine;
};

// The gradient that `rank` computes for an element in a micro-step: whole numbers, so that sums are exact.
float gradient_of(int rank, int micro_step, int block, int64_t element) {
  return static_cast<float>((rank + 1) * 100 + micro_step * 10 + block) + static_cast<float>(element);
}

}  // namespace

TEST_CASE("engine: acquire gives every rank the whole block, before and after a publish") {
  for (int group_size : {1, 2, 3, 5}) {
    for (int prefetch : {0, 1}) {
      fakes::ThreadWorld world(group_size);
      std::vector<char> right(static_cast<size_t>(group_size), 1);
      world.run([&](int rank, std::span<comm::Communicator* const> channels) {
        Rig rig(group_size, {.prefetch = prefetch}, *channels[0], *channels[1]);
        for (float offset : {0.0F, 0.5F}) {
          rig.fill_master(rank, offset);
          for (int block = 0; block < 4; ++block) {
            if (!rig.acquired_is(block, block < 3 ? block + 1 : -1, offset))
              right[static_cast<size_t>(rank)] = 0;
          }
          for (int block = 3; block >= 0; --block) {
            if (!rig.acquired_is(block, block - 1, offset)) right[static_cast<size_t>(rank)] = 0;
          }
        }
      });
      for (char rank_is_right : right) CHECK(rank_is_right == 1);
    }
  }
}

TEST_CASE(
    "engine: with prefetch a forward and a backward gather each block at most twice, and the turn not at "
    "all") {
  fakes::ThreadWorld world(2);
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    CountingCommunicator gather(*channels[0]), reduce(*channels[1]);
    Rig rig(2, {.prefetch = 1}, gather, reduce);
    rig.fill_master(rank, 0.0F);
    for (int block = 0; block < 4; ++block) rig.acquired_is(block, block < 3 ? block + 1 : -1, 0.0F);
    for (int block = 3; block >= 0; --block) rig.acquired_is(block, block - 1, 0.0F);
    // Forward 0 1 2 3; backward finds 3 and 2 still there and gathers 1 0.
    if (rank == 0) CHECK(gather.operations == 6);
  });
}

TEST_CASE("engine: gradients are summed over ranks and micro-steps, and padding stays zero") {
  for (int group_size : {1, 2, 3}) {
    fakes::ThreadWorld world(group_size);
    std::vector<int> wrong(static_cast<size_t>(group_size), 0);
    world.run([&](int rank, std::span<comm::Communicator* const> channels) {
      Rig rig(group_size, {.accumulates = true}, *channels[0], *channels[1]);
      int& mine_wrong = wrong[static_cast<size_t>(rank)];
      for (int optimizer_step = 0; optimizer_step < 2; ++optimizer_step) {
        for (int micro_step = 0; micro_step < 3; ++micro_step) {
          rig.engine.begin_micro_step(micro_step == 0);
          for (int block = 3; block >= 0; --block) {
            auto buffer = rig.engine.gradient_buffer(block);
            REQUIRE(buffer);
            for (size_t i = 0; i < buffer->values.size(); ++i) {
              const float more = gradient_of(rank, micro_step, block, static_cast<int64_t>(i));
              buffer->values[i] = buffer->accumulate ? buffer->values[i] + more : more;
            }
            REQUIRE(rig.engine.reduce(block, /*last=*/micro_step == 2));
          }
        }
        REQUIRE(rig.engine.finish_reductions());
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

TEST_CASE("engine: a group of one never talks to its communicators and needs no block buffers") {
  fakes::ThreadWorld world(1);
  world.run([&](int, std::span<comm::Communicator* const> channels) {
    CountingCommunicator gather(*channels[0]), reduce(*channels[1]);
    Rig rig(1, {.prefetch = 1}, gather, reduce);
    rig.fill_master(0, 0.0F);
    CHECK(rig.acquired_is(1, 2, 0.0F));
    rig.engine.begin_micro_step(/*first=*/true);
    REQUIRE(rig.engine.gradient_buffer(1));
    REQUIRE(rig.engine.reduce(1, /*last=*/true));
    REQUIRE(rig.engine.finish_reductions());

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
        EngineOptions options{.compute = kernels::DType::kBf16, .keeps_parameters = keeps_parameters};
        Rig kept(group_size, options, *channels[0], *channels[1]);
        options.keeps_compute_copy = false;
        Rig made(group_size, options, *channels[0], *channels[1]);
        for (const float offset : {0.0F, 0.3F}) {
          kept.fill_master(rank, offset);
          made.fill_master(rank, offset);
          for (const int block : {0, 1, 2, 3, 3, 2, 1, 0}) {
            const auto a = kept.engine.acquire(block, {}), b = made.engine.acquire(block, {});
            REQUIRE(a);
            REQUIRE(b);
            if (!std::equal(a->begin(), a->end(), b->begin(), b->end())) ++wrong[static_cast<size_t>(rank)];
            kept.engine.release(block);
            made.engine.release(block);
          }
        }
      });
      CHECK_EQ(wrong, std::vector<int>(static_cast<size_t>(group_size), 0));
    }
  }
}

TEST_CASE("engine: it uses exactly the bytes it planned, under every option") {
  for (int group_size : {1, 2}) {
    for (const EngineOptions& options :
         {EngineOptions{kernels::DType::kFp32, 0, false}, EngineOptions{kernels::DType::kFp32, 1, true},
          EngineOptions{kernels::DType::kBf16, 0, true}, EngineOptions{kernels::DType::kBf16, 1, false},
          EngineOptions{.compute = kernels::DType::kBf16, .keeps_compute_copy = false}}) {
      fakes::ThreadWorld world(group_size);
      const auto gather = world.communicator(0, 0), reduce = world.communicator(0, 1);
      const Rig rig(group_size, options, *gather, *reduce);
      CHECK(rig.arena.used_bytes() == rig.arena.planned_bytes());
    }
  }
}

TEST_CASE("engine: a rank alone adds later contributions where the first one is, without memory for them") {
  fakes::ThreadWorld world(1);
  const auto gather = world.communicator(0, 0), reduce = world.communicator(0, 1);
  Rig rig(1, {.accumulates = true, .revisits = true}, *gather, *reduce);
  const auto contribution = [&] {
    const auto buffer = rig.engine.gradient_buffer(1);
    REQUIRE(buffer);
    REQUIRE(rig.engine.reduce(1, /*last=*/false));
    return *buffer;
  };

  rig.engine.begin_micro_step(/*first=*/true);
  const GradientBuffer first = contribution(), again = contribution();
  rig.engine.begin_micro_step(/*first=*/false);
  const GradientBuffer next = contribution();
  rig.engine.begin_micro_step(/*first=*/true);
  const GradientBuffer anew = contribution();

  for (const GradientBuffer& buffer : {first, again, next, anew})
    CHECK(buffer.values.data() == rig.engine.gradient().data() + rig.layout.block(1).shard_offset);
  CHECK(!first.accumulate);
  CHECK(again.accumulate);
  CHECK(next.accumulate);
  CHECK(!anew.accumulate);
  CHECK(rig.arena.used_bytes() == 2 * Arena::bytes_of<float>(rig.layout.flat_shard_elements));
}

TEST_CASE("engine: a lost peer ends acquire with an error that names the rank and the block") {
  fakes::ThreadWorld world(2);
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    if (rank == 1) return world.kill(1);
    Rig rig(2, {.prefetch = 0}, *channels[0], *channels[1]);
    rig.fill_master(rank, 0.0F);

    const auto acquired = rig.engine.acquire(2, {});

    REQUIRE(!acquired);
    CHECK(acquired.error().code() == base::Code::kPeerLost);
    CHECK(acquired.error().to_string().find(
              "gathering the parameters of block 2: operation #1: lost rank 1") == 0);
  });
}
