// NVIDIA's compiler itself on what the trainer wants of it. Exit code 77 where there is none: skipped, never passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/trainer/compile/cubin.h"
#include "runtime/trainer/compile/nvrtc.h"
#include "runtime/trainer/compile/prepare.h"
#include "runtime/trainer/kernels/cuda/specialised.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::compile;
using kernels::DType;
using kernels::KernelShape;
using kernels::Op;
using kernels::Target;
using shardrun::tests::Folder;

namespace {

const model::LlamaConfig kSmall{
    .layers = 24, .hidden = 1024, .heads = 16, .kv_heads = 4, .ffn = 2816, .vocab = 32000};
const model::LlamaConfig kLarge{
    .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256};

std::vector<KernelShape> shapes_of_everything() {
  std::vector<KernelShape> all;
  const auto add = [&](const std::vector<KernelShape>& shapes) {
    all.insert(all.end(), shapes.begin(), shapes.end());
  };
  add(model::kernel_shapes(kSmall, DType::kBf16, 1, Target::kCuda));
  add(model::kernel_shapes(kSmall, DType::kFp32, 1, Target::kCuda));
  add(model::kernel_shapes(kLarge, DType::kBf16, 2, Target::kCuda));
  add(model::kernel_shapes(
      model::BertConfig{.layers = 24, .hidden = 1024, .heads = 16, .ffn = 4096, .vocab = 30522}, DType::kBf16,
      Target::kCuda));
  add({{Op::kAttentionForward, DType::kBf16, 48, Target::kCuda, 6, 3},  // by the plain kernels
       {Op::kRmsNormForward, DType::kBf16, 1001, Target::kCuda},        // an element at a time
       {Op::kCrossEntropy, DType::kFp32, 50257, Target::kCuda}});
  return all;
}

void check_all(const std::string& architecture, const std::vector<KernelShape>& shapes) {
  const Folder folder;
  const auto nvrtc = Nvrtc::find(architecture);
  REQUIRE(nvrtc);
  const auto cache = KernelCache::open(folder / "cache");
  REQUIRE(cache);
  PrepareOptions options;
  options.workers = 2;
  const auto done = prepare(*cache, *nvrtc, shapes, options);
  INFO((done ? std::string() : done.error().to_string()));
  REQUIRE(done);
  for (const kernels::KernelCode& kernel : done->kernels) {
    const auto right = check_cubin(kernel.code, architecture, kernels::cuda::entry_names(kernel.shape));
    INFO(kernels::name_of(kernel.shape), ": ", right ? "" : right.error().to_string());
    CHECK(right);
  }
  std::printf("%s: %d kernels for %s in %.1f s of compiling\n", nvrtc->identity().c_str(), done->compiled,
              architecture.c_str(), done->compile_seconds);
}

}  // namespace

TEST_CASE("every_kernel_of_llamas_and_berts_compiles_for_hopper") {
  check_all("sm_90", shapes_of_everything());
}

TEST_CASE("the_same_sources_compile_for_ampere_and_blackwell") {
  const auto shapes = model::kernel_shapes(kSmall, DType::kBf16, 1, Target::kCuda);
  check_all("sm_80", shapes);
  check_all("sm_100", shapes);
}

TEST_CASE("four_processes_compile_each_kernel_once_with_nvrtc_and_a_second_run_none") {
  const Folder folder;
  const auto shapes = model::kernel_shapes(kSmall, DType::kBf16, 1, Target::kCuda);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto nvrtc = Nvrtc::find("sm_90");
      const auto cache = KernelCache::open(folder / "cache");
      const auto done = prepare(*cache, *nvrtc, shapes, {});
      ::_exit(done && done->kernels.size() == shapes.size() ? done->compiled : 99);
    }
    children.push_back(child);
  }
  int compiled = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    compiled += WEXITSTATUS(status);
  }
  CHECK(shapes.size() >= 7);
  CHECK(compiled == static_cast<int>(shapes.size()));

  const auto nvrtc = Nvrtc::find("sm_90");
  const auto cache = KernelCache::open(folder / "cache");
  const auto again = prepare(*cache, *nvrtc, shapes, {});
  REQUIRE(again);
  CHECK(again->compiled == 0);
}

TEST_CASE("a_source_that_does_not_compile_blocks_training_with_nvrtcs_words") {
  const Folder folder;
  const auto nvrtc = Nvrtc::find("sm_90");
  REQUIRE(nvrtc);
  const auto cache = KernelCache::open(folder / "cache");
  REQUIRE(cache);
  const KernelShape shape{Op::kSwiGluForward, DType::kBf16, 2816, Target::kCuda};
  const Recipe right = recipe_of(shape, nvrtc->identity(), nvrtc->flags());
  Recipe broken = right;
  broken.translation_unit += "extern \"C\" void also() { no_such_thing(); }\n";
  CHECK(digest_of(broken) != digest_of(right));
  const auto entry = nvrtc->compile(broken, folder.path(), [] {});
  REQUIRE(entry);
  REQUIRE(entry->kind == Entry::Kind::kFailure);
  CHECK(entry->payload.find("\"no_such_thing\" is undefined") != std::string::npos);
  REQUIRE(cache->publish(digest_of(right), *entry));
  const auto refused = prepare(*cache, *nvrtc, std::vector{shape}, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kRefused);
  CHECK(refused.error().to_string().find("no_such_thing") != std::string::npos);
}

int main(int argc, char** argv) {
  const auto nvrtc = Nvrtc::find("sm_90");
  if (!nvrtc) {
    std::printf("skipped: %s\n", nvrtc.error().to_string().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
