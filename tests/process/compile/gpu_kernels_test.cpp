// Kernels for GPUs by a scripted NVRTC and into a scripted driver: what is cached, shared, refused and loaded.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/compile/cubin.h"
#include "runtime/compile/gpu_kernels.h"
#include "runtime/compile/nvrtc.h"
#include "runtime/compile/prepare.h"
#include "runtime/model/bert.h"
#include "runtime/model/llama.h"
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
  Scene() {
    ::setenv("TEST_NVRTC", folder_.path().c_str(), 1);
    ::setenv("TEST_DRIVER", folder_.path().c_str(), 1);
  }
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
  int lines(const std::string& word) const {
    std::ifstream log(folder_ / "calls");
    int count = 0;
    for (std::string line; std::getline(log, line);) count += line.find(word) != line.npos ? 1 : 0;
    return count;
  }
  int calls() const { return lines(""); }
  void forget_calls() const { std::ofstream(folder_ / "calls"); }
  const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
};

bool is_right(const Preparation& done, const std::string& architecture) {
  return done.kernels.size() == Scene::shapes().size() &&
         std::all_of(done.kernels.begin(), done.kernels.end(), [&](const PreparedKernel& kernel) {
           return check_cubin(kernel.library, architecture, kernels::cuda::entry_names(kernel.shape))
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

TEST_CASE("prepared_kernels_are_loaded_into_the_gpu_found_by_ops_and_taken_out_again") {
  const Scene scene;
  const auto prepared = scene.prepare();
  REQUIRE(prepared);
  CHECK(gpu_architecture(0, FAKE_DRIVER).value() == "sm_90");
  scene.forget_calls();
  {
    auto gpu = GpuKernels::load(prepared->kernels, 0, FAKE_DRIVER);
    REQUIRE(gpu);
    CHECK(scene.lines("load") == static_cast<int>(prepared->kernels.size()));
    CHECK(scene.lines("function shardrun_attention_key_gradient") == 1);
    const auto* const kernel = static_cast<const kernels::cuda::LoadedKernel*>(
        kernels::find({Op::kAttentionBackward, DType::kBf16, 128, Target::kCuda, 8, 2}));
    REQUIRE(kernel != nullptr);
    CHECK(kernel->functions[kernels::cuda::kOfQueries] != kernel->functions[kernels::cuda::kOfKeys]);
    int argument = 17;
    void* arguments[] = {&argument};
    CHECK(kernel->launch(kernel->functions[0], 3, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr) == 0);
    CHECK(scene.lines("launch 3 x 128 of 17") == 1);
    CHECK(kernels::find({Op::kAttentionBackward, DType::kBf16, 128}) == nullptr);  // not the CPU's
  }
  CHECK(kernels::find({Op::kAttentionBackward, DType::kBf16, 128, Target::kCuda, 8, 2}) == nullptr);
  CHECK(scene.lines("unload") == static_cast<int>(prepared->kernels.size()));
  CHECK(scene.lines("release") == 1);
  kernels::forget_all();
}

TEST_CASE("code_for_another_gpu_is_not_loaded") {
  const Scene scene;
  const auto prepared = scene.prepare("sm_80");
  REQUIRE(prepared);
  const auto refused = GpuKernels::load(prepared->kernels, 0, FAKE_DRIVER);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kCorrupt);
  CHECK(refused.error().to_string().find("code for sm_80, not for sm_90") != std::string::npos);
  CHECK(kernels::find(prepared->kernels.front().shape) == nullptr);
  CHECK(scene.lines("load") == 0);
  const auto nobody = GpuKernels::load(prepared->kernels, 3, FAKE_DRIVER);
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().code() == base::Code::kNotFound);
  CHECK_FALSE(gpu_architecture(0, "libcuda_of_nobody.so"));
}
