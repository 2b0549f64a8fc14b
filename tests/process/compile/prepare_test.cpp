// Many processes want the same kernels: each is compiled once, whatever dies, is damaged or refuses.
//
// The compiler is a script in front of PATH, which counts its calls; what it leaves is no code, but known bytes.
#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/trainer/compile/lease.h"
#include "runtime/trainer/compile/prepare.h"

using namespace shardrun;
using namespace shardrun::compile;
using kernels::DType;
using kernels::Op;
namespace fs = std::filesystem;

namespace {

const std::vector<kernels::KernelShape> kShapes = {{Op::kRope, DType::kBf16, 64},
                                                   {Op::kSwiGluForward, DType::kBf16, 352},
                                                   {Op::kSwiGluBackward, DType::kBf16, 352},
                                                   {Op::kRmsNormForward, DType::kBf16, 128},
                                                   {Op::kRmsNormBackward, DType::kBf16, 128},
                                                   {Op::kAttentionForward, DType::kBf16, 64},
                                                   {Op::kAttentionBackward, DType::kBf16, 64}};

// A compiler that writes its call into a log, sleeps, and makes a library out of the name of the kernel's op.
class Scene {
 public:
  explicit Scene(const std::string& behaviour) {
    char name[] = "/tmp/shardrun_prepare_XXXXXX";
    folder_ = ::mkdtemp(name);
    fs::create_directory(folder_ + "/bin");
    std::ofstream(folder_ + "/bin/c++") << fmt::format(R"(#!/bin/sh
case "$1" in --version) echo "c++ (test) 1.0"; exit;; -dumpmachine) echo test; exit;; esac
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then out=$2; fi; last=$1; shift; done
echo "$$" >>{0}/calls
{1}
sed -n 's/^.*void shardrun_kernel(.*) {{ \(.*\); }}$/\1/p' "$last" >"$out"
)",
                                                       folder_, behaviour);
    REQUIRE(::chmod((folder_ + "/bin/c++").c_str(), 0755) == 0);
    old_path_ = ::getenv("PATH");
    ::setenv("PATH", (folder_ + "/bin:" + old_path_).c_str(), 1);
  }
  ~Scene() {
    ::setenv("PATH", old_path_.c_str(), 1);
    fs::remove_all(folder_);
  }

  Result<Preparation> prepare(const PrepareOptions& options = {}) const {
    const auto cache = KernelCache::open(cache_folder());
    if (!cache) return cache.error();
    const auto compiler = CxxCompiler::find();
    if (!compiler) return compiler.error();
    return compile::prepare(*cache, *compiler, kShapes, options);
  }
  // In a process of its own, which ends with 0 when every kernel came out as it must.
  pid_t prepare_aside(int workers = 1) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    PrepareOptions options;
    options.workers = workers;
    const auto done = prepare(options);
    ::_exit(done && is_right(*done) ? 0 : 1);
  }
  static bool is_right(const Preparation& done) {
    if (done.kernels.size() != kShapes.size()) return false;
    for (const kernels::KernelCode& kernel : done.kernels) {
      const std::string name = kernels::name_of(kernel.shape);
      const std::string op = name.substr(0, name.rfind('_', name.rfind('_') - 1));
      if (kernel.code.rfind(op + "(", 0) != 0) return false;
    }
    return true;
  }

  int calls() const {
    std::ifstream log(folder_ + "/calls");
    int lines = 0;
    for (std::string line; std::getline(log, line);) ++lines;
    return lines;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(cache_folder()))
      if (entry.path().filename().string().size() == 64) paths.push_back(entry.path().string());
    return paths;
  }
  std::string cache_folder() const { return folder_ + "/cache"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_, old_path_;
};

int exit_code_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("a_hundred_cold_starts_compile_each_kernel_once_and_a_second_run_none") {
  const Scene scene("sleep 0.05");
  std::vector<pid_t> children;
  for (int i = 0; i < 100; ++i) children.push_back(scene.prepare_aside());
  for (const pid_t child : children) CHECK(exit_code_of(child) == 0);
  CHECK(scene.calls() == static_cast<int>(kShapes.size()));

  const auto again = scene.prepare();
  REQUIRE(again);
  CHECK(Scene::is_right(*again));
  CHECK(again->compiled == 0);
  CHECK(again->recorded_seconds > 0.05 * static_cast<double>(kShapes.size()));
  CHECK(scene.calls() == static_cast<int>(kShapes.size()));
  // Nothing is left behind but the entries.
  CHECK(scene.entries().size() == kShapes.size());
  CHECK(std::distance(fs::directory_iterator(scene.cache_folder()), fs::directory_iterator()) ==
        static_cast<long>(kShapes.size()));
}

TEST_CASE("workers_of_one_process_share_its_kernels") {
  const Scene scene("sleep 0.1");
  PrepareOptions options;
  options.workers = 4;
  const auto begin = std::chrono::steady_clock::now();
  const auto done = scene.prepare(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE(done);
  CHECK(Scene::is_right(*done));
  CHECK(done->compiled == static_cast<int>(kShapes.size()));
  CHECK(scene.calls() == static_cast<int>(kShapes.size()));
  CHECK(seconds < done->compile_seconds);
}

TEST_CASE("a_process_that_may_not_compile_waits_for_those_that_may") {
  const Scene scene("sleep 0.02");
  const pid_t waiting = scene.prepare_aside(/*workers=*/0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(scene.calls() == 0);
  CHECK(exit_code_of(scene.prepare_aside()) == 0);
  CHECK(exit_code_of(waiting) == 0);
}

TEST_CASE("a_process_that_is_killed_while_it_compiles_costs_nothing_but_time") {
  const Scene scene("sleep 0.2");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) children.push_back(scene.prepare_aside());
  while (scene.calls() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(::kill(children.front(), SIGKILL) == 0);
  CHECK(exit_code_of(children.front()) == 128 + SIGKILL);
  for (size_t i = 1; i < children.size(); ++i) CHECK(exit_code_of(children[i]) == 0);
  // The victim's kernel twice at most, every other once.
  CHECK(scene.calls() >= static_cast<int>(kShapes.size()));
  CHECK(scene.calls() <= static_cast<int>(kShapes.size()) + 1);
}

TEST_CASE("a_compiler_that_is_killed_is_no_refusal_and_is_not_remembered") {
  const Scene scene("if [ ! -e " +
                    std::string("$(dirname $0)/../once ]; then touch $(dirname $0)/../once; kill -9 $$; fi"));
  const auto killed = scene.prepare();
  REQUIRE_FALSE(killed);
  CHECK(killed.error().code() == base::Code::kCancelled);
  CHECK(killed.error().to_string().find("signal 9") != std::string::npos);
  const auto done = scene.prepare();
  REQUIRE(done);
  CHECK(Scene::is_right(*done));
}

TEST_CASE("a_damaged_entry_is_made_again_and_never_used") {
  const Scene scene("");
  REQUIRE(scene.prepare());
  const auto entries = scene.entries();
  for (const std::string& path : entries) {
    std::string bytes = base::read_file(path).value();
    bytes[bytes.size() - 3] = '#';
    REQUIRE(base::write_file_atomically(path, bytes));
  }
  std::vector<std::string> notices;
  PrepareOptions options;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  const auto done = scene.prepare(options);
  REQUIRE(done);
  CHECK(Scene::is_right(*done));
  CHECK(done->compiled == static_cast<int>(kShapes.size()));
  CHECK(notices.size() == kShapes.size());
}

TEST_CASE("a_refusal_is_remembered_with_the_compilers_words_until_asked_to_try_again") {
  const Scene scene(
      "if [ -e $(dirname $0)/../broken ]; then echo 'kernel.cpp:7: error: no such thing' >&2; exit 1; fi");
  std::ofstream(scene.folder() + "/broken") << "";
  const auto refused = scene.prepare();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kRefused);
  CHECK(refused.error().to_string().find("kernel.cpp:7: error: no such thing") != std::string::npos);
  const int calls = scene.calls();
  REQUIRE_FALSE(scene.prepare());
  CHECK(scene.calls() == calls);

  fs::remove(scene.folder() + "/broken");
  REQUIRE_FALSE(scene.prepare());
  PrepareOptions options;
  options.forget_failures = true;
  const auto done = scene.prepare(options);
  REQUIRE(done);
  CHECK(Scene::is_right(*done));
}

TEST_CASE("the_lease_of_a_node_that_is_alive_is_waited_for_and_named") {
  const Scene scene("");
  REQUIRE(scene.prepare());
  const std::string entry = scene.entries().front();
  fs::remove(entry);
  REQUIRE(base::write_file_atomically(entry + ".lease", "other-boot/pid:[1] node7 41 99 0\n"));
  PrepareOptions options;
  options.longest_wait = std::chrono::seconds(1);
  const auto late = scene.prepare(options);
  REQUIRE_FALSE(late);
  CHECK(late.error().code() == base::Code::kTimeout);
  CHECK(late.error().to_string().find("node7 (process 41) compiles") != std::string::npos);
}

TEST_CASE("a_compiler_that_others_could_replace_is_refused") {
  const Scene scene("");
  REQUIRE(::chmod((scene.folder() + "/bin").c_str(), 0777) == 0);
  const auto refused = scene.prepare();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == base::Code::kRefused);
  CHECK(refused.error().to_string().find("chmod go-w") != std::string::npos);
}
