// Writes the specialised kernels of models of many sizes, as NVRTC compiles them for an architecture, for
// tests/gpu/kernel_resources to read:  specialised_kernels FOLDER ARCHITECTURE
//   FOLDER/<name>.cubin, and FOLDER/kernels with a line of each function: <name>.cubin|function|kernel it stands for|threads
// Needs no GPU. Exit code 77 where there is no NVRTC.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/trainer/compile/nvrtc.h"
#include "runtime/trainer/compile/prepare.h"
#include "runtime/trainer/kernels/cuda/specialised.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

using namespace shardrun;

namespace {

constexpr kernels::DType kBf16 = kernels::DType::kBf16;

// Heads of 64 and of 128, both norms, alone and sharing matrices.
std::vector<kernels::KernelShape> shapes_of_training() {
  std::vector<kernels::KernelShape> all;
  const auto add = [&](const std::vector<kernels::KernelShape>& shapes) {
    all.insert(all.end(), shapes.begin(), shapes.end());
  };
  add(model::kernel_shapes(
      model::LlamaConfig{
          .layers = 24, .hidden = 1024, .heads = 16, .kv_heads = 4, .ffn = 2816, .vocab = 32000},
      kBf16, 1, kernels::Target::kCuda));
  add(model::kernel_shapes(
      model::LlamaConfig{
          .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256},
      kBf16, 2, kernels::Target::kCuda));
  add(model::kernel_shapes(
      model::BertConfig{.layers = 24, .hidden = 1024, .heads = 16, .ffn = 4096, .vocab = 30522}, kBf16,
      kernels::Target::kCuda));
  return all;
}

int fail(const base::Error& error) {
  std::fprintf(stderr, "FAILED: %s\n", error.to_string().c_str());
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: specialised_kernels FOLDER ARCHITECTURE\n", stderr);
    return 2;
  }
  const std::string folder = arguments[1];
  const auto nvrtc = compile::Nvrtc::find(arguments[2]);
  if (!nvrtc) {
    std::printf("skipped: %s\n", nvrtc.error().to_string().c_str());
    return 77;
  }
  const auto cache = compile::KernelCache::open(folder + "/cache");
  if (!cache) return fail(cache.error());
  const auto done = compile::prepare(*cache, *nvrtc, shapes_of_training(), {});
  if (!done) return fail(done.error());
  std::ofstream list(folder + "/kernels");
  for (const kernels::KernelCode& kernel : done->kernels) {
    const std::string file = kernels::name_of(kernel.shape) + ".cubin";
    std::ofstream(folder + "/" + file, std::ios::binary) << kernel.code;
    const auto functions = kernels::cuda::entry_names(kernel.shape);
    const auto stand_for = kernels::cuda::kernel_names(kernel.shape);
    for (size_t i = 0; i < functions.size(); ++i) {
      list << file << '|' << functions[i] << '|' << stand_for[i] << '|'
           << kernels::cuda::block_threads(kernel.shape) << '\n';
    }
  }
  list.flush();
  return list.good() ? 0 : 1;
}
