#include "runtime/plan/pipeline.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"
#include "runtime/plan/rank_memory.h"

using namespace shardrun;
using plan::Stage;
using plan::Turn;
using plan::Turns;

namespace {

// "F0 F1 B0 F2B2", or with the letter of a chunk "Fa0 Fb0Bb0"
std::string order_of(const Stage& stage, int64_t micro_steps, bool backward = true) {
  std::string text;
  Turns turns(stage, micro_steps, backward);
  while (const auto turn = turns.next()) {
    const std::string name = (stage.chunks > 1 ? std::string(1, static_cast<char>('a' + turn->chunk)) : "") +
                             std::to_string(turn->micro_step);
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", turn->forward ? "F" + name : "",
                        turn->backward ? "B" + name : "");
  }
  return text;
}

// Runs all stages at once, each until it waits for a message that nobody has sent, or until one that it sends has to wait because the
// one before it was not taken yet. Every chunk takes one unit of time for a forward and two for a backward, and messages take none.
class Simulation {
 public:
  Simulation(int stages, int chunks, int64_t micro_steps, bool backward = true) {
    for (int number = 0; number < stages; ++number) {
      const Stage stage{number, stages, chunks};
      all_.push_back({stage, Turns(stage, micro_steps, backward)});
      all_.back().turn = all_.back().turns.next();
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (Running& one : all_)
        while (moves(one)) moved = true;
    }
    for (const Running& one : all_) {
      if (one.turn || one.leaving) wrong = "all stages wait";
      for (const auto& [part, times] : one.done)
        if (times.first != 1 || times.second != int{backward}) wrong = "not each once";
      if (std::ssize(one.done) != micro_steps * chunks) wrong = "not every chunk and micro-step";
      ends = std::max(ends, one.now);
    }
  }

  std::string wrong;
  int64_t ends = 0;  // when the last stage is done
  // Forwards of chunks whose activations a stage held, at most.
  int64_t most_alive(int stage) const { return all_[stage].most_alive; }

 private:
  static constexpr size_t kBuffers = 1;  // messages between two stages; the trainer has one at each end
  struct Message {
    Turn turn;
    int64_t at = 0;
  };
  struct Leaving {
    std::deque<Message>* inbox;
    Message message;
  };
  struct Running {
    Stage stage;
    Turns turns;
    std::optional<Turn> turn{};
    int64_t now = 0, alive = 0, most_alive = 0;
    std::deque<Message> activations{}, gradients{};  // that came
    std::optional<Leaving> leaving{};
    std::map<std::pair<int, int64_t>, std::pair<int, int>>
        done{};  // forwards and backwards, by chunk and micro-step
  };

  // Whether something could be done.
  bool moves(Running& one) {
    if (one.leaving) {
      if (one.leaving->inbox->size() == kBuffers) return false;
      one.leaving->inbox->push_back(one.leaving->message);
      one.leaving.reset();
      return true;
    }
    return one.turn && takes_turn(one);
  }

  bool takes_turn(Running& one) {
    const Stage& stage = one.stage;
    const Turn turn = *one.turn;
    auto& inbox = turn.forward ? one.activations : one.gradients;
    if (turn.forward ? !stage.begins(turn.chunk) : !stage.ends(turn.chunk)) {
      if (inbox.empty()) return false;
      const Turn& came = inbox.front().turn;
      if (came.micro_step != turn.micro_step || came.chunk != turn.chunk) wrong = "another one's message";
      one.now = std::max(one.now, inbox.front().at);
      inbox.pop_front();
    }
    one.now += (turn.forward ? 1 : 0) + (turn.backward ? 2 : 0);
    auto& [forwards, backwards] = one.done[{turn.chunk, turn.micro_step}];
    if (turn.forward) {
      ++forwards;
      one.most_alive = std::max(one.most_alive, ++one.alive);
    }
    if (turn.backward) {
      if (forwards != 1) wrong = "a backward before its forward";
      ++backwards;
      --one.alive;
    }
    pass_on(one, turn);
    one.turn = one.turns.next();
    return true;
  }

  void pass_on(Running& one, Turn turn) {
    const int stages = one.stage.stages, number = one.stage.number;
    if (turn.backward) {
      if (one.stage.begins(turn.chunk)) return;
      turn.chunk -= int{number == 0};
      one.leaving = {&all_[(number + stages - 1) % stages].gradients, {turn, one.now}};
    } else if (!one.stage.ends(turn.chunk)) {
      turn.chunk += int{number + 1 == stages};
      one.leaving = {&all_[(number + 1) % stages].activations, {turn, one.now}};
    }
  }

  std::vector<Running> all_;
};

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

TEST_CASE(
    "pipeline: with several chunks a stage, as many micro-steps as stages go through one before the next") {
  CHECK_EQ(order_of({0, 2, 2}, 2), "Fa0 Fa1 Fb0 Fb1 Bb0 Bb1 Ba0 Ba1");
  CHECK_EQ(order_of({1, 2, 2}, 2), "Fa0 Fa1 Fb0Bb0 Fb1Bb1 Ba0 Ba1");
  CHECK_EQ(order_of({0, 2, 2}, 4), "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3");
  CHECK_EQ(order_of({1, 2, 2}, 4), "Fa0 Fa1 Fb0Bb0 Fb1Bb1 Fa2 Ba0 Fa3 Ba1 Fb2Bb2 Fb3Bb3 Ba2 Ba3");
  CHECK_EQ(order_of({1, 2, 2}, 3), "Fa0 Fa1 Fb0Bb0 Fb1Bb1 Fa2 Ba0 Ba1 Fb2Bb2 Ba2");
  CHECK_EQ(order_of({0, 3, 2}, 1), "Fa0 Fb0 Bb0 Ba0");
  CHECK_EQ(order_of({1, 2, 2}, 3, /*backward=*/false), "Fa0 Fa1 Fb0 Fb1 Fa2 Fb2");
}

TEST_CASE("pipeline: stages never wait for each other, hold no more than they may, and end when 1F1B ends") {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int64_t micro_steps = 1; micro_steps <= 20; ++micro_steps) {
      CAPTURE(stages);
      CAPTURE(micro_steps);
      const Simulation run(stages, 1, micro_steps);
      CHECK_EQ(run.wrong, "");
      CHECK_EQ(run.ends, 3 * (micro_steps + stages - 1));
      for (int number = 0; number < stages; ++number)
        CHECK_EQ(run.most_alive(number), std::min<int64_t>(stages - number, micro_steps));
      CHECK_EQ(Simulation(stages, 1, micro_steps, /*backward=*/false).wrong, "");
    }
  }
  CHECK_EQ(plan::bubble_share(4, 1, 12), doctest::Approx(3.0 / 15.0));
}

TEST_CASE("pipeline: interleaved stages never wait in a circle either, and wait a chunk's part of the time") {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int chunks = 2; chunks <= 5; ++chunks) {
      for (int64_t micro_steps = 1; micro_steps <= 3 * stages + 2; ++micro_steps) {
        CAPTURE(stages);
        CAPTURE(chunks);
        CAPTURE(micro_steps);
        const Simulation run(stages, chunks, micro_steps);
        CHECK_EQ(run.wrong, "");
        CHECK_EQ(Simulation(stages, chunks, micro_steps, /*backward=*/false).wrong, "");
        const double share =
            1.0 - static_cast<double>(3 * chunks * micro_steps) / static_cast<double>(run.ends);
        CHECK_LE(share, plan::bubble_share(stages, chunks, micro_steps) + 1e-12);
        if (micro_steps % stages == 0) {
          CHECK_EQ(run.ends, 3 * (chunks * micro_steps + stages - 1));
          CHECK_EQ(share, doctest::Approx(plan::bubble_share(stages, chunks, micro_steps)));
        }
        for (int number = 0; number < stages; ++number) {
          CHECK_LE(run.most_alive(number), chunks * stages + stages - 1);  // as Megatron-LM's first stage
          CHECK_LE(run.most_alive(number), Stage{number, stages, chunks}.warm_up() + 1);
        }
      }
    }
  }
  CHECK_EQ(plan::bubble_share(4, 2, 12), doctest::Approx(1.5 / 13.5));
  CHECK_LT(plan::bubble_share(4, 2, 12), plan::bubble_share(4, 2, 13));
}

TEST_CASE(
    "pipeline: what a stage holds needs no more pieces than are alive at once, each for one layer at a "
    "time") {
  for (int chunks = 1; chunks <= 4; ++chunks) {
    for (int64_t micro_steps = 1; micro_steps <= 24; ++micro_steps) {
      for (int number = 0; number < 4; ++number) {
        CAPTURE(chunks);
        CAPTURE(micro_steps);
        CAPTURE(number);
        const Stage stage{number, 4, chunks};
        const std::vector<int> layers = plan::layers_of_chunks(stage, 2 * chunks - 1);
        plan::HeldLayers held(layers);
        std::map<std::pair<int, int64_t>, std::vector<int>> of;
        std::vector<int> owners(64, 0);
        int64_t alive = 0, most = 0;
        Turns turns(stage, micro_steps, /*backward=*/true);
        while (const auto turn = turns.next()) {
          const auto pieces = held.begin(*turn);
          const std::vector<int> now(pieces.begin(), pieces.end());
          REQUIRE_EQ(std::ssize(now), layers[turn->chunk]);
          const std::pair part(turn->chunk, turn->micro_step);
          if (turn->forward) {
            of[part] = now;
            for (const int piece : now) REQUIRE_EQ(++owners.at(piece), 1);
            alive += std::ssize(now);
          }
          REQUIRE(of[part] == now);
          most = std::max(most, alive);
          if (turn->backward) {
            for (const int piece : now) --owners[piece];
            alive -= std::ssize(now);
          }
          held.end(*turn, /*backward_follows=*/true);
        }
        CHECK_EQ(alive, 0);
        CHECK_EQ(held.pieces(), most);
        CHECK_EQ(plan::most_held(stage, micro_steps, layers), most);
      }
    }
  }
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
  // Each of two stages has a layer for each of two chunks, however costly the head is.
  CHECK_EQ(plan::cut_layers(std::vector<double>(6, 1.0), 0, 100, 2, /*least=*/2), Begins{0, 4, 6});
  using Layers = std::vector<int>;
  CHECK_EQ(plan::layers_of_chunks({0, 2, 3}, 7), Layers{2, 2, 3});
  CHECK_EQ(plan::layers_of_chunks({1, 2, 3}, 7), Layers{3, 2, 2});  // the head stands with the last one
}

TEST_CASE("pipeline: a Llama's stages have each layer once, the embedding first and the head last") {
  plan::LlamaConfig config{.layers = 7, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 8192};
  int next = 0;
  for (int number = 0; number < 3; ++number) {
    const plan::StageOfModel stage = stage_of(config, {number, 3}, 128, /*micro_steps=*/8);
    REQUIRE_EQ(stage.chunks.size(), 1);
    CHECK_EQ(stage.chunks[0].first, next);
    CHECK_EQ(stage.has_embedding, number == 0);
    CHECK_EQ(stage.has_head, number == 2);
    CHECK_EQ(stage.held, (3 - number) * stage.chunks[0].count);
    next += stage.chunks[0].count;
  }
  CHECK_EQ(next, 7);
  // The head's products are eight times a layer's: it stands with one layer.
  CHECK_EQ(stage_of(config, {2, 3}, 128, 8).chunks[0].count, 1);
  CHECK_EQ(plan::stages_of_blocks(config, {0, 3}, 128), std::vector<int>{0, 0, 0, 0, 1, 1, 1, 2, 2});
  config.tied_embeddings = true;
  CHECK_EQ(plan::stages_of_blocks(config, {0, 3}, 128), std::vector<int>{0, 0, 0, 0, 1, 1, 1, 2});
  const auto last =
      plan::blocks_of_stage(config, plan::trained_blocks(config, 0, 1), stage_of(config, {2, 3}, 128, 8));
  CHECK_FALSE(last.front().elsewhere);
  CHECK(last[6].elsewhere);
  CHECK_FALSE(last[7].elsewhere);
}

TEST_CASE("pipeline: of interleaved stages each has a part of every round through the model") {
  plan::LlamaConfig config{.layers = 9, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  int next = 0;
  for (int chunk = 0; chunk < 2; ++chunk) {
    for (int number = 0; number < 3; ++number) {
      const plan::StageOfModel stage = stage_of(config, {number, 3, 2}, 128, /*micro_steps=*/8);
      REQUIRE_EQ(stage.chunks.size(), 2);
      CHECK_EQ(stage.chunks[chunk].first, next);
      next += stage.chunks[chunk].count;
    }
  }
  CHECK_EQ(next, 9);
  // Three layers each: one and two, and where the head is two and one.
  CHECK_EQ(plan::stages_of_blocks(config, {0, 3, 2}, 128), std::vector<int>{0, 0, 1, 2, 2, 0, 0, 1, 1, 2, 2});
  CHECK_EQ(stage_of(config, {0, 3, 2}, 128, 8).visit_begins(), std::vector<int>{0, 2, 4});
  CHECK_EQ(stage_of(config, {2, 3, 2}, 128, 8).visit_begins(), std::vector<int>{0, 2, 4});
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
  const auto planned = [&](int number, int stages, int chunks = 1) {
    options.stage = {number, stages, chunks};
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
  // Interleaved, the first of four stages holds 11 layers and not 8.
  const auto layer = static_cast<double>(first - planned(1, 4).activations) / 2;
  CHECK_LT(std::abs(static_cast<double>(planned(0, 4, 2).activations - first) - 3.0 * layer), 1.0);
  CHECK_EQ(planned(0, 4, 2).masters, planned(0, 4).masters);
  std::get<plan::LlamaConfig>(options.model).vocab = 16384;
  options.stage = {0, 4};
  const plan::ModelPlan job = plan::job_memory(options, {1, 1, 1}, {.world_size = 4, .ranks_per_node = 4});
  // The head's logits and products make the last stage the one that holds most.
  CHECK_EQ(job.memory.masters, planned(3, 4).masters);
  CHECK_EQ(job.memory.activations, planned(3, 4).activations);
  CHECK_EQ(job.pipeline_parallel, 4);
}
