// Kernels for GPUs by a scripted NVRTC: what is cached, shared and refused, and what a node without NVRTC does.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/trainer/compile/cubin.h"
#include "runtime/trainer/compile/nvrtc.h"
#include "runtime/trainer/compile/prepare_gpu.h"
#include "runtime/trainer/kernels/cuda/specialised.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/support/fake_cubin.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::compile;
using kernels::DType;
using kernels::KernelShape;
using kernels::Op;
using kernels::Target;
using shardrun::tests::Folder;

namespace {

const model::LlamaConfig kLlama{
    .layers = 2, .hidden = 1024, .heads = 8, .kv_heads = 2, .ffn = 2816, .vocab = 32000};

class Scene {
 public:
  Scene() { ::setenv("TEST_NVRTC", folder_.path().c_str(), 1); }
  Result<Preparation> prepare(const std::string& architecture = "sm_90",
                              const PrepareOptions& options = {}) const {
    const auto cache = KernelCache::open(folder_ / "cache");
    if (!cache) return cache.error();
    const auto nvrtc = Nvrtc::open(FAKE_NVRTC, architecture);
    if (!nvrtc) return nvrtc.error();
    return compile::prepare(*cache, *nvrtc, shapes(), options);
  }
  static std::vector<KernelShape> shapes() {
    return model::kernel_shapes(kLlama, DType::kBf16, 1, Target::kCuda);
  }
  int calls() const {
    std::ifstream log(folder_ / "calls");
    int count = 0;
    for (std::string line; std::getline(log, line);) ++count;
    return count;
  }
  void forget_calls() const { std::ofstream(folder_ / "calls"); }
  const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
};

bool is_right(const Preparation& done, const std::string& architecture) {
  return done.kernels.size() == Scene::shapes().size() &&
         std::all_of(done.kernels.begin(), done.kernels.end(), [&](const kernels::KernelCode& kernel) {
           return check_cubin(kernel.code, architecture, kernels::cuda::entry_names(kernel.shape))
               .has_value();
         });
}

}  // namespace

TEST_CASE("four_processes_compile_each_kernel_for_a_gpu_once_and_a_second_run_none") {
  const Scene scene;
  const int wanted = static_cast<int>(Scene::shapes().size());
  REQUIRE(wanted >= 7);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto done = scene.prepare();
      ::_exit(done && is_right(*done, "sm_90") ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(scene.calls() == wanted);

  const auto again = scene.prepare();
  REQUIRE(again);
  CHECK(again->compiled == 0);
  CHECK(is_right(*again, "sm_90"));
  CHECK(scene.calls() == wanted);
}

TEST_CASE("another_architecture_is_another_entry") {
  const Scene scene;
  REQUIRE(scene.prepare("sm_90"));
  const auto other = scene.prepare("sm_80");
  REQUIRE(other);
  CHECK(other->compiled == static_cast<int>(Scene::shapes().size()));
  CHECK(is_right(*other, "sm_80"));
}

TEST_CASE("an_architecture_that_nvrtc_does_not_know_is_refused_before_anything_is_compiled") {
  const Scene scene;
  const auto refused = scene.prepare("sm_70");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kUnsupported);
  CHECK(refused.error().to_string().find("it knows sm_80, sm_90") != std::string::npos);
  CHECK(scene.calls() == 0);
}

TEST_CASE("without_nvrtc_the_error_says_what_to_install") {
  const auto missing = Nvrtc::open("/nowhere/libnvrtc.so.13", "sm_90");
  REQUIRE_FALSE(missing);
  const auto found = Nvrtc::open("libnvrtc_of_nobody.so", "sm_90");
  REQUIRE_FALSE(found);
  CHECK(found.error().code() == base::Code::kNotFound);
}

TEST_CASE("a_refused_source_is_remembered_with_nvrtcs_words_until_asked_to_try_again") {
  const Scene scene;
  scene.folder().file("broken", "");
  const auto refused = scene.prepare();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kRefused);
  CHECK(refused.error().to_string().find("norms.cu(7): error: no such thing") != std::string::npos);
  const int calls = scene.calls();
  ::unlink((scene.folder() / "broken").c_str());
  REQUIRE_FALSE(scene.prepare());
  CHECK(scene.calls() == calls);
  PrepareOptions options;
  options.forget_failures = true;
  CHECK(scene.prepare("sm_90", options));
}

TEST_CASE("a_damaged_entry_and_one_with_foreign_code_are_made_again_and_never_used") {
  const Scene scene;
  const auto nvrtc = Nvrtc::open(FAKE_NVRTC, "sm_90");
  REQUIRE(nvrtc);
  REQUIRE(scene.prepare());
  const auto cache = KernelCache::open(scene.folder() / "cache");
  REQUIRE(cache);
  const auto digest = [&](size_t which) {
    return digest_of(recipe_of(Scene::shapes()[which], nvrtc->identity(), nvrtc->flags()));
  };
  std::string bytes = base::read_file(cache->path_of(digest(0))).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  REQUIRE(base::write_file_atomically(cache->path_of(digest(0)), bytes));
  // Its checksum is right, and so is its name; what it holds is for another GPU.
  REQUIRE(cache->publish(digest(1), {Entry::Kind::kLibrary, "x", 1, tests::fake_cubin(80, {"entry"})}));
  scene.forget_calls();
  std::vector<std::string> notices;
  PrepareOptions options;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  const auto done = scene.prepare("sm_90", options);
  REQUIRE(done);
  CHECK(is_right(*done, "sm_90"));
  CHECK(scene.calls() == 2);
  REQUIRE(notices.size() == 2);
  CHECK((notices[0] + notices[1]).find("code for sm_80, not for sm_90") != std::string::npos);
}

TEST_CASE("code_for_another_architecture_out_of_the_compiler_is_not_published") {
  const Scene scene;
  scene.folder().file("foreign", "");
  const auto refused = scene.prepare();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kCorrupt);
  ::unlink((scene.folder() / "foreign").c_str());
  CHECK(scene.prepare());
}

TEST_CASE("a_node_without_nvrtc_uses_what_another_compiled_and_says_what_to_do_about_the_rest") {
  const Scene scene;
  const auto cache = KernelCache::open(scene.folder() / "cache");
  REQUIRE(cache);
  const auto ask = [&](const Result<Nvrtc>& nvrtc, const std::vector<KernelShape>& shapes) {
    return prepare_for_gpu(*cache, nvrtc, "sm_90", shapes, {});
  };
  const Result<Nvrtc> none = base::Error(base::Code::kNotFound, "no NVRTC; install it");
  const auto empty = ask(none, Scene::shapes());
  REQUIRE_FALSE(empty);
  CHECK(empty.error().code() == base::Code::kNotFound);
  CHECK(empty.error().to_string().find("install it") != std::string::npos);

  // Another, newer one has been here, too, and made nothing of this job.
  REQUIRE(cache->remember_compiler("NVRTC 99.0 (1 bytes)"));
  REQUIRE(ask(Nvrtc::open(FAKE_NVRTC, "sm_90"), Scene::shapes()));
  const int calls = scene.calls();
  const auto found = ask(none, Scene::shapes());
  REQUIRE(found);
  CHECK(is_right(*found, "sm_90"));
  CHECK(found->compiled == 0);
  CHECK(scene.calls() == calls);

  const auto missing = ask(none, {{Op::kSwiGluForward, DType::kBf16, 7, Target::kCuda}});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code() == base::Code::kNotFound);
  const std::string text = missing.error().to_string();
  CHECK(text.find("cuda_swiglu_forward_bf16_7 is not in " + (scene.folder() / "cache")) != std::string::npos);
  CHECK(text.find("install it") != std::string::npos);
  // It holds no lease: a node with NVRTC can make it.
  const auto made =
      ask(Nvrtc::open(FAKE_NVRTC, "sm_90"), {{Op::kSwiGluForward, DType::kBf16, 7, Target::kCuda}});
  REQUIRE(made);
  CHECK(made->compiled == 1);
}

TEST_CASE("a_node_whose_nvrtc_is_not_for_its_gpus_does_not_look_for_the_work_of_others") {
  const Scene scene;
  const auto cache = KernelCache::open(scene.folder() / "cache");
  REQUIRE(cache);
  const auto refused =
      prepare_for_gpu(*cache, Nvrtc::open(FAKE_NVRTC, "sm_70"), "sm_70", Scene::shapes(), {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kUnsupported);
}
