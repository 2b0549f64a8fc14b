// The driver of a GPU as tests script it: one device, modules that are counted, launches that are written down.
//
//   TEST_DRIVER   a folder: `calls` gets a line for each call
#include <stdlib.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace {

void note(const std::string& line) {
  std::ofstream(std::string(::getenv("TEST_DRIVER")) + "/calls", std::ios::app) << line << '\n';
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = 40 + index;
  return index == 0 ? 0 : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  note("retain");
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  note("release");
  return 0;
}
int cuCtxSetCurrent(void*) {
  return 0;
}
int cuModuleLoadData(void** module, const void*) {
  note("load");
  *module = new std::string("module");
  return 0;
}
int cuModuleUnload(void* module) {
  delete static_cast<std::string*>(module);
  note("unload");
  return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  static char functions[16];
  static int count = 0;
  *function = &functions[count++ % 16];
  note(std::string("function ") + name);
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_OF_THE_TEST";
  return 0;
}
int cuFuncSetAttribute(void*, int, int) {
  return 0;
}
int cuLaunchKernel(void*, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                   void*, void** arguments, void**) {
  note("launch " + std::to_string(x) + " x " + std::to_string(threads) + " of " +
       std::to_string(*static_cast<int*>(arguments[0])));
  return 0;
}

}  // extern "C"
