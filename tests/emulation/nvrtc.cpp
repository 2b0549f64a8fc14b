// NVRTC for the emulated GPU: the same calls and the same texts go in, and out comes a shared object for the CPU
// that is laid out as a cubin. So all that stands between a job's shapes and the start of its kernels runs without
// NVIDIA's libraries.
//
// The texts are C++ except for a few words of CUDA's, which g++ gets as macros; what a kernel promises its compiler
// by __builtin_assume is checked when it runs. Standard headers are the compiler's own.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/emulation/emulated_code.h"
#include "tests/support/fake_cubin.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;

constexpr int kSuccess = 0, kInvalidOption = 5, kDoesNotCompile = 6, kInternalError = 11;

struct Header {
  std::string name, text;
};
struct Program {
  std::string source;
  std::vector<Header> headers;
  std::string log, cubin;
};

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Returns its exit status; what it says is in folder/log.
int run_compiler(const fs::path& folder) {
  const std::string include = "-I" + folder.string(), source = folder / "kernel.cpp",
                    object = folder / "kernel.so", log = folder / "log";
  const char* const argv[] = {EMULATION_COMPILER,
                              "-std=c++20",
                              "-O2",
                              "-fPIC",
                              "-shared",
                              "-w",
                              "-fno-strict-aliasing",
                              "-mfma",
                              "-fsanitize=alignment",
                              "-fsanitize-undefined-trap-on-error",
                              "-D__CUDACC_RTC__",
                              "-D__forceinline__=inline",
                              "-D__builtin_assume(holds)=shardrun::emulation::assume((holds), #holds)",
                              "-include",
                              EMULATION_DEVICE_CODE,
                              include.c_str(),
                              "-o",
                              object.c_str(),
                              source.c_str(),
                              EMULATION_LIBRARY,
                              nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, const_cast<char**>(argv), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int compile(Program& program, unsigned architecture) {
  char pattern[] = "/tmp/emulated-nvrtc-XXXXXX";
  if (::mkdtemp(pattern) == nullptr) return kInternalError;
  const fs::path folder(pattern);
  for (const Header& header : program.headers) {
    if (header.name.find('/') != std::string::npos) write(folder / header.name, header.text);
  }
  write(folder / "kernel.cpp", program.source);
  const int status = run_compiler(folder);
  program.log = text_of(folder / "log");
  if (status == 0) {
    program.cubin = shardrun::emulation::with_object(
        shardrun::tests::fake_cubin(architecture, shardrun::tests::kernels_in(program.source)),
        text_of(folder / "kernel.so"));
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return status == 0 ? kSuccess : kDoesNotCompile;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return kSuccess;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return kSuccess;
}
int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return kSuccess;
}
const char* nvrtcGetErrorString(int) {
  return "an error of the emulated NVRTC";
}
int nvrtcCreateProgram(void** program, const char* source, const char*, int count, const char* const* texts,
                       const char* const* names) {
  auto* const made = new Program{source, {}, "", ""};
  for (int i = 0; i < count; ++i) made->headers.push_back({names[i], texts[i]});
  *program = made;
  return kSuccess;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return kSuccess;
}
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  const std::string option = "--gpu-architecture=sm_";
  for (int i = 0; i < count; ++i) {
    if (std::strncmp(options[i], option.c_str(), option.size()) == 0) {
      return compile(*static_cast<Program*>(program),
                     static_cast<unsigned>(std::atoi(options[i] + option.size())));
    }
  }
  return kInvalidOption;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) {
  *size = static_cast<Program*>(program)->log.size() + 1;
  return kSuccess;
}
int nvrtcGetProgramLog(void* program, char* log) {
  const std::string& text = static_cast<Program*>(program)->log;
  std::memcpy(log, text.c_str(), text.size() + 1);
  return kSuccess;
}
int nvrtcGetCUBINSize(void* program, size_t* size) {
  *size = static_cast<Program*>(program)->cubin.size();
  return kSuccess;
}
int nvrtcGetCUBIN(void* program, char* cubin) {
  const std::string& bytes = static_cast<Program*>(program)->cubin;
  std::memcpy(cubin, bytes.data(), bytes.size());
  return kSuccess;
}

}  // extern "C"
