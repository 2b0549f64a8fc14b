// What the nccl plugin says where libraries are missing, too old or not what they seem. Each case has its own process.
#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "runtime/base/command.h"

using namespace shardrun;

namespace {

std::string answer(std::vector<std::string> libraries) {
  std::vector<std::string> command = {BIN_DIR "/open_plugin", NCCL_PLUGIN};
  command.insert(command.end(), libraries.begin(), libraries.end());
  const auto ran = base::run_command(command, "", std::chrono::seconds(60));
  REQUIRE(ran);
  return ran->out + ran->err;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl: with NCCL and a GPU it opens") {
  CHECK(contains(answer({FAKE_CUDA, FAKE_NCCL}), "ok|"));
}

TEST_CASE("nccl: a libnccl that is too old is refused with both versions and what to do") {
  const std::string said = answer({FAKE_CUDA, FAKE_NCCL_TOO_OLD});
  CAPTURE(said);
  CHECK(contains(said, "unsupported|"));
  CHECK(contains(said, "plugin nccl needs NCCL 2.17.1 or later, libnccl.so.2 is 2.16.2: update libnccl2"));
}

TEST_CASE("nccl: a libnccl without a function that is needed is refused with the function's name") {
  const std::string said = answer({FAKE_CUDA, FAKE_NCCL_LACKING});
  CAPTURE(said);
  CHECK(contains(said, "unsupported|"));
  CHECK(contains(said, "libnccl.so.2 (version 2.28.9) has no ncclCommAbort"));
}

TEST_CASE("nccl: a machine whose driver finds no GPU is refused in the driver's words") {
  const std::string said = answer({FAKE_CUDA_WITHOUT_GPU, FAKE_NCCL});
  CAPTURE(said);
  CHECK(contains(said, "unsupported|"));
  CHECK(contains(said,
                 "the driver finds none (cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected)"));
}

TEST_CASE("nccl: the real library has every function, and without a GPU the refusal is ours") {
  const std::string real = REAL_NCCL;
  if (real.empty() || ::access(real.c_str(), R_OK) != 0) {
    MESSAGE("skipped: no libnccl.so.2 was found when this was configured");
    return;
  }
  const std::string said = answer({real});
  CAPTURE(said);
  if (::access("/dev/nvidiactl", F_OK) == 0) {
    CHECK(contains(said, "ok|"));
  } else {
    CHECK(contains(said, "unsupported|"));
    CHECK(contains(said, "plugin nccl needs an NVIDIA GPU"));
  }
}
