// NVRTC as tests script it: a call of the compiler is a line in a log and some time, and what it leaves is a cubin without
// code but with the functions that the source declares.
//
//   TEST_NVRTC   a folder: `calls` is the log; the file `broken` makes it refuse every source, `foreign` makes it
//                         write code for another architecture
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/fake_cubin.h"

namespace {

struct Program {
  std::string source, log, cubin;
};

std::string folder() {
  return ::getenv("TEST_NVRTC");
}
bool is_there(const char* name) {
  return std::filesystem::exists(folder() + "/" + name);
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 99;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return 0;
}
int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return 0;
}
const char* nvrtcGetErrorString(int) {
  return "an error of the test";
}
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{source, "", ""};
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return 0;
}
int nvrtcCompileProgram(void* handle, int count, const char* const* flags) {
  auto& program = *static_cast<Program*>(handle);
  std::ofstream(folder() + "/calls", std::ios::app) << ::getpid() << std::endl;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  if (is_there("broken")) {
    program.log = "norms.cu(7): error: no such thing\n";
    return 6;
  }
  unsigned architecture = 0;
  const char* const option = "--gpu-architecture=sm_";
  for (int i = 0; i < count; ++i) {
    if (std::strncmp(flags[i], option, std::strlen(option)) == 0)
      architecture = static_cast<unsigned>(std::stoul(flags[i] + std::strlen(option)));
  }
  program.cubin = shardrun::tests::fake_cubin(is_there("foreign") ? 75 : architecture,
                                              shardrun::tests::kernels_in(program.source));
  return 0;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) {
  *size = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* log) {
  const std::string& text = static_cast<Program*>(program)->log;
  std::memcpy(log, text.c_str(), text.size() + 1);
  return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* size) {
  *size = static_cast<Program*>(program)->cubin.size();
  return 0;
}
int nvrtcGetCUBIN(void* program, char* cubin) {
  const std::string& bytes = static_cast<Program*>(program)->cubin;
  std::memcpy(cubin, bytes.data(), bytes.size());
  return 0;
}

}  // extern "C"
