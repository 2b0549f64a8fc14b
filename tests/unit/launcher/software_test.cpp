// What the words of --software mean for a prediction.
#include <doctest/doctest.h>

#include "launcher/forecast/certainty.h"
#include "launcher/foresight/software.h"

using namespace shardrun::launcher;

namespace {

constexpr ModelShape k8B{.layers = 32, .hidden = 4096, .kv_width = 1024, .ffn = 14336, .vocab = 128256};

Software of(const std::string& text) {
  const auto software = parse_software(text);
  if (!software) FAIL(software.error().to_string());
  return *software;
}

std::string refusal(const std::string& text) {
  const auto software = parse_software(text);
  return software ? "" : software.error().to_string();
}

// Of an 8B model on four nodes of eight Hopper accelerators.
StepForecast step_of(const std::string& text, int tensor = 1, double network_rate = 4e12) {
  const Software software = of(text);
  Machine machine;
  machine.generation = Generation::kHopper;
  machine.peak = 989e12;
  machine.memory_rate = 3.35e12;
  machine.link_rate = 450e9;
  machine.network_rate = network_rate;
  Layout layout;
  layout.nodes = 4;
  layout.tensor_parallel = tensor;
  layout.given = software.given;
  layout.shard_degree = 32 / tensor / software.given.pipeline;
  layout.accumulation = 8;
  layout.sequence_length = 8192;
  ModelShape model = k8B;
  if (software.gpt_blocks) model.ffn_matrices = 2;
  return forecast_step(machine, model, layout, software.traits, fitted_constants());
}

}  // namespace

TEST_CASE("software: each stack is known by its name, and some by another") {
  CHECK(of("torchtitan").traits.stack == Stack::kTitan);
  CHECK(of("nxd").traits.stack == Stack::kNeuron);
  CHECK(of("xla").traits.stack == Stack::kMaxText);
  CHECK(of("paxml").traits.stack == Stack::kPaxml);
  CHECK(of("nanotron").traits.stack == Stack::kNanotron);
  CHECK(refusal("horovod").starts_with("--software horovod: unknown; one of smp, "));
}

TEST_CASE("software: a word that nobody knows is answered with those that there are") {
  CHECK(refusal("torchtitan,compiled")
            .starts_with("--software: compiled: unknown; behind the stack stand tensor=N, compile, "));
  CHECK(refusal("torchtitan,reduce=int8").starts_with("--software: reduce=int8: unknown; "));
  CHECK(refusal("megatron,pipeline=0") == "--software: pipeline=0: write a whole number of 1 to 32768");
  CHECK(refusal("megatron,tensor=two") == "--software: tensor=two: write a whole number of 1 to 32768");
  CHECK(refusal("megatron,chunks=2").find("are of pipelines") != std::string::npos);
  CHECK(refusal("megatron,pipeline=4,chunks=2,zero_bubble").find("leave out one") != std::string::npos);
  CHECK(refusal("megatron,experts=8,active=9").find("cannot have more") != std::string::npos);
  CHECK(refusal("megatron,experts=8,active=2,expert_parallel=3").find("does not divide") !=
        std::string::npos);
}

TEST_CASE("software: degrees whose product no number holds are refused in a line") {
  CHECK(refusal("megatron,pipeline=65536,chunks=65536") ==
        "--software: pipeline=65536: write a whole number of 1 to 32768");
  Question question;
  question.model = k8B;
  question.constants = fitted_constants();
  question.given = of("megatron,pipeline=32768,chunks=32768,context=32768").given;
  question.tensor_parallel = 32768;
  CHECK(search(question).candidates.empty());
}

TEST_CASE("software: compiled kernels are faster, and so is a tensor group that works while it exchanges") {
  CHECK(step_of("torchtitan,compile").seconds < 0.97 * step_of("torchtitan").seconds);
  CHECK(step_of("maxtext,eager").seconds > 1.03 * step_of("maxtext").seconds);
  CHECK(step_of("torchtitan,async_tp", 8).seconds < step_of("torchtitan", 8).seconds);
  CHECK(step_of("torchtitan,async_tp", 1).seconds == step_of("torchtitan", 1).seconds);
}

TEST_CASE("software: gradients in bf16 are half of the bytes that are reduced") {
  CHECK(step_of("torchtitan,reduce=bf16").volumes.reduce ==
        doctest::Approx(step_of("torchtitan,reduce=fp32").volumes.reduce / 2.0));
}

TEST_CASE("software: a block of GPT has two matrices for three") {
  const double three = k8B.layer_parameters(), two = three - 4096.0 * 14336.0;
  const double flops = 6.0 * 32 * (three - two) * step_of("megatron").tokens;
  CHECK(step_of("megatron").model_flops * step_of("megatron").seconds * 32 -
            step_of("megatron,gpt").model_flops * step_of("megatron,gpt").seconds * 32 ==
        doctest::Approx(flops).epsilon(1e-6));
}

TEST_CASE(
    "software: stages wait for each other, less in chunks, and a third where weights' gradients fill the "
    "wait") {
  const double plain = step_of("megatron,pipeline=4").phases.bubble;
  CHECK(step_of("megatron").phases.bubble == 0.0);
  CHECK(plain > 0.0);
  CHECK(step_of("megatron,pipeline=4,chunks=2").phases.bubble == doctest::Approx(plain / 2.0));
  CHECK(step_of("megatron,pipeline=4,zero_bubble").phases.bubble == doctest::Approx(plain / 3.0));
}

TEST_CASE("software: keys and values that are gathered first are waited for, those of a ring are not") {
  CHECK(step_of("torchtitan,context=4,gathered_context").seconds > step_of("torchtitan,context=4").seconds);
}

// Of eight experts two compute, which is as if the feed-forward network were twice as wide; all eight are held, and with
// eight ranks that share them one.
TEST_CASE("software: of experts those compute that are active, and tokens go to their ranks") {
  constexpr double kSlow = 50e9;
  const StepForecast dense = step_of("megatron", 1, kSlow),
                     sparse = step_of("megatron,experts=8,active=2", 1, kSlow),
                     shared = step_of("megatron,experts=8,active=2,expert_parallel=8", 1, kSlow);
  const double ffn = 3.0 * 4096 * 14336;
  CHECK(sparse.model_flops * sparse.seconds - dense.model_flops * dense.seconds ==
        doctest::Approx(6.0 * 32 * ffn * dense.tokens / 32).epsilon(1e-6));
  CHECK(sparse.volumes.gather > 3.0 * dense.volumes.gather);
  CHECK(shared.seconds < sparse.seconds);
  Run run{Machine{}, k8B, Layout{}, traits(Stack::kMegatron)};
  run.layout.given = of("megatron,experts=8,active=2").given;
  CHECK(beyond_published(run) == std::vector<std::string>{"no published run has experts"});
}

// Eight ranks of a tensor group with two heads of keys and values have each head four times.
TEST_CASE("software: a tensor group wider than the heads of keys and values computes some of them again") {
  ModelShape many = k8B, few = k8B;
  many.kv_width = 1024;
  few.kv_width = 256;
  const auto seconds = [](const ModelShape& model, int tensor) {
    Layout layout;
    layout.tensor_parallel = tensor;
    layout.sequence_length = 8192;
    return forecast_step(Machine{}, model, layout, traits(Stack::kMegatron), fitted_constants())
        .phases.compute;
  };
  const double saved_whole = seconds(many, 1) - seconds(few, 1),
               saved_shared = seconds(many, 8) - seconds(few, 8);
  CHECK(saved_whole > 0.0);
  CHECK(saved_shared < 0.7 * saved_whole / 8.0);
}

TEST_CASE("software: llm-foundry sums the gradients of copies in each micro-step, and fsdp in the last one") {
  Layout layout;
  layout.strategy = shardrun::spec::Strategy::kNoShard;
  layout.accumulation = 4;
  const auto sent = [&](Stack stack) {
    return forecast_step(Machine{}, k8B, layout, traits(stack), fitted_constants()).volumes.replica;
  };
  CHECK(sent(Stack::kFoundry) == doctest::Approx(4.0 * sent(Stack::kFms)));
}

TEST_CASE("software: a search keeps what is given, and offers what the stack has") {
  Question question;
  question.model = k8B;
  question.constants = fitted_constants();
  question.nodes = 4;
  question.global_batch = 128;
  question.machine.memory_bytes = 80e9;
  const auto ask = [&](const std::string& text) {
    const Software software = of(text);
    question.traits = software.traits;
    question.given = software.given;
    question.tensor_parallel = software.tensor_parallel;
    question.as_offered = true;
    return search(question).candidates;
  };
  for (const Candidate& one : ask("megatron,tensor=2,pipeline=4,chunks=2")) {
    CHECK(one.layout.tensor_parallel == 2);
    CHECK(one.layout.given.pipeline == 4);
    CHECK(one.layout.micro_batch * one.layout.accumulation * (32 / 2 / 4) == 128);
  }
  CHECK(ask("megatron,pipeline=5").empty());  // 32 layers
  const auto foundry = ask("llm-foundry");
  CHECK_FALSE(foundry.empty());
  for (const Candidate& one : foundry) {
    CHECK(one.layout.tensor_parallel == 1);
    CHECK((one.layout.shard_degree == 1 || one.layout.shard_degree == 32));
  }
}
