// The presets against what their publishers say: how many parameters each model has.
#include <doctest/doctest.h>

#include <cstdint>
#include <utility>

#include "runtime/plan/model/llama.h"
#include "runtime/plan/model/shape.h"
#include "runtime/spec/job_spec.h"
#include "runtime/spec/model_presets.h"

using namespace shardrun;

namespace {

plan::LlamaConfig preset(const std::string& name) {
  const auto spec =
      spec::parse_job_spec("name = \"x\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"" + name +
                               "\"\n[data]\nfiles = [\"x.tokens\"]\n",
                           "job.toml");
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  return plan::LlamaConfig::of(spec->model);
}

}  // namespace

// Source: the models' pages, or the index of their safetensors files.
TEST_CASE("presets: a published model has as many parameters as its publisher says") {
  const std::pair<const char*, int64_t> published[] = {
      {"llama-2-7b", 6'738'415'616},      {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192},    {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},    {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.2-1b", 1'235'814'400},    {"llama-3.2-3b", 3'212'749'824},
      {"mistral-7b-v0.1", 7'241'732'096}, {"mistral-7b-v0.3", 7'248'023'552},
      {"qwen-2.5-0.5b", 494'032'768},     {"qwen-2.5-1.5b", 1'543'714'304},
      {"qwen-2.5-7b", 7'615'616'512},     {"qwen-2.5-72b", 72'706'203'648},
      {"qwen-3-0.6b", 596'049'920},       {"qwen-3-1.7b", 1'720'574'976},
      {"qwen-3-8b", 8'190'735'360},       {"qwen-3-32b", 32'762'123'264},
      {"smollm2-135m", 134'515'008},      {"smollm2-360m", 361'821'120},
      {"smollm2-1.7b", 1'711'376'384},    {"tinyllama-1.1b", 1'100'048'384},
      {"qwen-3-30b-a3b", 30'532'122'624}, {"mixtral-8x7b-v0.1", 46'702'792'704},
  };
  for (const auto& [name, parameters] : published) {
    CAPTURE(name);
    int64_t elements = 0;
    for (const auto& block : plan::block_layouts(preset(name))) elements += block.elements;
    CHECK_EQ(elements, parameters);
  }
}

TEST_CASE("presets: a token of a mixture costs the parameters of the experts that compute it") {
  // Mixtral 8x7B: 32 layers of attention (2·4096² and 2·4096·1024), router (8·4096) and 2 of 8 experts (3·4096·14336), and the head.
  const double layer = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 8.0 * 4096 + 2 * 3.0 * 4096 * 14336;
  const double scores = 6.0 * 32 * 4096 * 512;
  CHECK(plan::flops_per_token(preset("mixtral-8x7b-v0.1"), 512).causal ==
        doctest::Approx(6.0 * (32 * layer + 32000.0 * 4096) + scores));
}

TEST_CASE("presets: what only counts knows heads whose size is apart from hidden / heads") {
  // Qwen 3 0.6B: queries and output 2 · 1024 · 2048, keys and values 2 · 1024 · 1024, feed-forward 3 · 1024 · 3072, two norms.
  const plan::ModelShape shape = plan::shape_of(preset("qwen-3-0.6b"));
  CHECK(shape.layer_parameters() == 2.0 * 1024 * 2048 + 2.0 * 1024 * 1024 + 3.0 * 1024 * 3072 + 2.0 * 1024);
  const double scores = 6.0 * 28 * 2048 * 512;
  CHECK(shape.flops_per_token(512) ==
        6.0 * (28 * shape.layer_parameters() + shape.table_parameters()) + scores);
}
