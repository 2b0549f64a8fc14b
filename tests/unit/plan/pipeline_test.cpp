#include "runtime/plan/pipeline.h"

#include <doctest/doctest.h>

#include <deque>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"
#include "runtime/plan/rank_memory.h"

using namespace shardrun;
using plan::Stage;
using plan::Turn;

namespace {

// "F0 F1 B0 F2B2"
std::string order_of(const Stage& stage, int64_t micro_steps, bool backward = true) {
  std::string text;
  for (int64_t number = 0; number < plan::turn_count(stage, micro_steps, backward); ++number) {
    const Turn turn = plan::turn_at(stage, micro_steps, backward, number);
    text += fmt::format("{}{}{}", text.empty() ? "" : " ",
                        turn.forward ? fmt::format("F{}", turn.micro_step) : "",
                        turn.backward ? fmt::format("B{}", turn.micro_step) : "");
  }
  return text;
}

// Runs all stages at once, each until it waits for a message that nobody has sent; returns what is wrong, or nothing. Every
// stage takes one unit of time for a forward and two for a backward, and messages take none.
struct Simulated {
  std::string wrong;
  int64_t ends = 0;            // when the last stage is done
  std::vector<int64_t> alive;  // micro-batches whose activations a stage held, at most
};

Simulated simulate(int stages, int64_t micro_steps) {
  struct Message {
    int64_t micro_step = 0, at = 0;
  };
  struct Running {
    int64_t next = 0, now = 0, alive = 0;
    std::deque<Message> activations, gradients;  // that came
  };
  std::vector<Running> all(stages);
  Simulated result;
  result.alive.resize(stages);
  for (bool moved = true; moved;) {
    moved = false;
    for (int number = 0; number < stages; ++number) {
      const Stage stage{number, stages};
      Running& one = all[number];
      while (one.next < plan::turn_count(stage, micro_steps, true)) {
        const Turn turn = plan::turn_at(stage, micro_steps, true, one.next);
        auto& inbox = turn.forward ? one.activations : one.gradients;
        const bool needs = turn.forward ? !stage.is_first() : !stage.is_last();
        if (needs && inbox.empty()) break;
        if (needs) {
          if (inbox.front().micro_step != turn.micro_step) result.wrong = "another micro-step's message";
          one.now = std::max(one.now, inbox.front().at);
          inbox.pop_front();
        }
        one.now += (turn.forward ? 1 : 0) + (turn.backward ? 2 : 0);
        if (turn.forward) result.alive[number] = std::max(result.alive[number], ++one.alive);
        if (turn.backward) --one.alive;
        if (turn.forward && !stage.is_last())
          all[number + 1].activations.push_back({turn.micro_step, one.now});
        if (turn.backward && !stage.is_first())
          all[number - 1].gradients.push_back({turn.micro_step, one.now});
        ++one.next;
        moved = true;
      }
      result.ends = std::max(result.ends, one.now);
    }
  }
  for (int number = 0; number < stages; ++number) {
    if (all[number].next < plan::turn_count({number, stages}, micro_steps, true))
      result.wrong = "all stages wait";
    if (all[number].alive != 0) result.wrong = "a forward without its backward";
  }
  return result;
}

spec::JobSpec job(const std::string& sharding) {
  const auto spec = spec::parse_job_spec(
      "name = \"x\"\n[program]\ntrainer = \"llama\"\n[data]\nfiles = [\"x\"]\nsequence_length = 256\n"
      "[model]\npreset = \"llama-1m\"\n[sharding]\n" +
          sharding,
      "job.toml");
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  return *spec;
}

}  // namespace

TEST_CASE("pipeline: a stage goes forward until the last one has begun, then one forward, one backward") {
  CHECK_EQ(order_of({0, 3}, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK_EQ(order_of({1, 3}, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK_EQ(order_of({2, 3}, 4), "F0B0 F1B1 F2B2 F3B3");
  CHECK_EQ(order_of({0, 1}, 2), "F0B0 F1B1");
  CHECK_EQ(order_of({0, 4}, 2), "F0 F1 B0 B1");
  CHECK_EQ(order_of({1, 3}, 2, /*backward=*/false), "F0 F1");
}

TEST_CASE("pipeline: stages never wait for each other, hold no more than they may, and end when 1F1B ends") {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int64_t micro_steps = 1; micro_steps <= 20; ++micro_steps) {
      CAPTURE(stages);
      CAPTURE(micro_steps);
      const Simulated run = simulate(stages, micro_steps);
      CHECK_EQ(run.wrong, "");
      CHECK_EQ(run.ends, 3 * (micro_steps + stages - 1));
      for (int number = 0; number < stages; ++number)
        CHECK_EQ(run.alive[number], plan::Stage{number, stages}.in_flight(micro_steps));
    }
  }
  CHECK_EQ(plan::bubble_share(4, 12), doctest::Approx(3.0 / 15.0));
}

TEST_CASE("pipeline: layers are cut so that the costliest stage costs least, with fewer where more is held") {
  const auto cut = [](std::vector<double> layers, double before, double behind, int stages) {
    return plan::cut_layers(layers, before, behind, stages);
  };
  using Begins = std::vector<int>;
  CHECK_EQ(cut({1, 1, 1, 1}, 0, 0, 2), Begins{0, 2, 4});
  CHECK_EQ(cut({1, 1, 1, 1, 1, 1}, 0, 0, 4), Begins{0, 1, 2, 4, 6});
  CHECK_EQ(cut({1, 1, 1, 1, 1, 1}, 0, 2, 2), Begins{0, 4, 6});  // the head costs as much as two layers
  CHECK_EQ(cut({1, 1, 1, 1, 1, 1}, 2, 0, 2), Begins{0, 2, 6});
  CHECK_EQ(cut({1, 1, 1}, 0, 100, 3), Begins{0, 1, 2, 3});  // every stage has a layer
  CHECK_EQ(cut({5, 1, 1, 1, 1, 1}, 0, 0, 2), Begins{0, 1, 6});
  CHECK_EQ(cut({1, 1}, 0, 0, 1), Begins{0, 2});
}

TEST_CASE("pipeline: a Llama's stages have each layer once, the embedding first and the head last") {
  plan::LlamaConfig config{.layers = 7, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 8192};
  int next = 0;
  for (int number = 0; number < 3; ++number) {
    const plan::StageOfModel stage = stage_of(config, {number, 3}, 128, /*micro_steps=*/8);
    CHECK_EQ(stage.first_layer, next);
    CHECK_EQ(stage.has_embedding, number == 0);
    CHECK_EQ(stage.has_head, number == 2);
    CHECK_EQ(stage.in_flight, 3 - number);
    next += stage.layers;
  }
  CHECK_EQ(next, 7);
  // The head's products are eight times a layer's: it stands with one layer.
  CHECK_EQ(stage_of(config, {2, 3}, 128, 8).layers, 1);
  CHECK_EQ(plan::stages_of_blocks(config, 3, 128), std::vector<int>{0, 0, 0, 0, 1, 1, 1, 2, 2});
  config.tied_embeddings = true;
  CHECK_EQ(plan::stages_of_blocks(config, 3, 128), std::vector<int>{0, 0, 0, 0, 1, 1, 1, 2});
  const auto last =
      plan::blocks_of_stage(config, plan::trained_blocks(config, 0, 1), stage_of(config, {2, 3}, 128, 8));
  CHECK_FALSE(last.front().elsewhere);
  CHECK(last[6].elsewhere);
  CHECK_FALSE(last[7].elsewhere);
}

TEST_CASE("mesh: stages are the outermost ranks, and links join the same place in neighbours") {
  const auto mesh = plan::solve_mesh(job("pipeline_parallel = 3\ntensor_parallel = 2\n"), 12, 4);
  REQUIRE(mesh);
  using Ranks = std::vector<uint32_t>;
  CHECK_EQ(mesh->readers(), 2);
  CHECK_EQ(mesh->stage(7), 1);
  CHECK_EQ(mesh->data_rank(7), 1);
  CHECK_EQ(mesh->shard_group(7), Ranks{5, 7});
  CHECK_EQ(mesh->tensor_group(7), Ranks{6, 7});
  CHECK_EQ(mesh->replica_group(7), Ranks{7});
  CHECK_EQ(mesh->link_group(3, false), Ranks{3, 7});
  CHECK_EQ(mesh->link_group(7, false), Ranks{3, 7});
  CHECK_EQ(mesh->link_group(7, true), Ranks{7, 11});
  CHECK_EQ(mesh->link_group(3, true), Ranks{3});
  CHECK_EQ(mesh->link_group(11, false), Ranks{11});
  CHECK_EQ(mesh->end_group(3), Ranks{3, 11});
  CHECK_EQ(mesh->end_group(11), Ranks{3, 11});
  CHECK_EQ(mesh->end_group(7), Ranks{7});
  const auto copies = plan::solve_mesh(job("pipeline_parallel = 2\nstrategy = \"no_shard\"\n"), 4, 4);
  REQUIRE(copies);
  CHECK_EQ(copies->replica_group(3), Ranks{2, 3});
  const auto odd = plan::solve_mesh(job("pipeline_parallel = 4\n"), 6, 4);
  REQUIRE_FALSE(odd);
  CHECK_EQ(odd.error().to_string(),
           "job.toml:10:21: pipeline_parallel 4 does not divide 6 ranks; write 1, 2, 3 or 6");
}

TEST_CASE("memory plan: a stage holds its own blocks, and the activations of the micro-batches under way") {
  plan::RankOptions options;
  options.model =
      plan::LlamaConfig{.layers = 8, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  options.sequence_length = 256;
  options.gradient_accumulation = 8;
  const auto planned = [&](int number, int stages) {
    options.stage = {number, stages};
    return plan::rank_memory(options, {1, 1, 1}, {}).memory;
  };
  const plan::MemoryPlan whole = planned(0, 1);
  int64_t masters = 0;
  for (int number = 0; number < 4; ++number) masters += planned(number, 4).masters;
  CHECK_LE(masters - whole.masters, 4 * 64);
  CHECK_GE(masters, whole.masters);
  // Two layers for four micro-batches are as much as eight for one; the first stage has no logits.
  const int64_t first = planned(0, 4).activations, logits = 256 * 256 * 4;
  CHECK_LT(std::abs(first + logits - whole.activations), 200'000);
  CHECK_LT(planned(2, 4).activations, first);
  std::get<plan::LlamaConfig>(options.model).vocab = 16384;
  options.stage = {0, 4};
  const plan::ModelPlan job = plan::job_memory(options, {1, 1, 1}, {.world_size = 4, .ranks_per_node = 4});
  // The head's logits and products make the last stage the one that holds most.
  CHECK_EQ(job.memory.masters, planned(3, 4).masters);
  CHECK_EQ(job.memory.activations, planned(3, 4).activations);
  CHECK_EQ(job.pipeline_parallel, 4);
}
