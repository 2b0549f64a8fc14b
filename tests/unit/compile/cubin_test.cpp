// What is taken for a GPU's code, and which recipes name which entry.
#include <doctest/doctest.h>

#include <algorithm>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/trainer/compile/cubin.h"
#include "runtime/trainer/compile/recipe.h"
#include "runtime/trainer/kernels/cuda/specialised.h"
#include "tests/support/fake_cubin.h"

using namespace shardrun;
using namespace shardrun::compile;
using kernels::DType;
using kernels::KernelShape;
using kernels::Op;
using kernels::Target;
using tests::fake_cubin;

namespace {

const KernelShape kShape{Op::kAttentionBackward, DType::kBf16, 128, Target::kCuda, 32, 8};

}  // namespace

TEST_CASE("a_cubin_says_its_architecture_and_functions_in_both_layouts") {
  for (const bool new_layout : {true, false}) {
    for (const unsigned architecture : {80U, 90U, 100U, 120U}) {
      const auto cubin = parse_cubin(fake_cubin(architecture, {"first", "second"}, new_layout));
      REQUIRE(cubin);
      CHECK(cubin->architecture == "sm_" + std::to_string(architecture));
      CHECK(cubin->functions == std::vector<std::string>{"first", "second"});
    }
  }
}

TEST_CASE("a_cubin_that_is_cut_off_anywhere_is_none") {
  const std::string bytes = fake_cubin(90, {"entry"});
  REQUIRE(parse_cubin(bytes));
  for (size_t length = 0; length < bytes.size(); ++length) CHECK_FALSE(parse_cubin(bytes.substr(0, length)));
}

TEST_CASE("code_of_another_architecture_or_without_a_function_is_refused") {
  const std::string bytes = fake_cubin(90, {"entry"});
  const std::vector<std::string_view> one = {"entry"}, other = {"entry", "gradient"};
  CHECK(check_cubin(bytes, "sm_90", one));
  const auto foreign = check_cubin(bytes, "sm_80", one);
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().to_string().find("code for sm_90, not for sm_80") != std::string::npos);
  const auto lacking = check_cubin(bytes, "sm_90", other);
  REQUIRE_FALSE(lacking);
  CHECK(lacking.error().to_string().find("no function gradient") != std::string::npos);
}

TEST_CASE("a_gpus_kernel_is_named_by_its_heads_and_has_constants_where_the_source_has_sizes") {
  CHECK(kernels::name_of(kShape) == "cuda_attention_backward_bf16_128_32_8");
  CHECK(kernels::name_of({Op::kSwiGluForward, DType::kFp32, 96, Target::kCuda}) ==
        "cuda_swiglu_forward_fp32_96");
  const std::string unit = kernels::cuda::translation_unit(kShape);
  CHECK(unit.find("#include \"runtime/trainer/kernels/cuda/attention_tensor.cu\"") != std::string::npos);
  for (const char* constant :
       {"  p.H = 32;\n", "  p.K = 8;\n", "  p.stride = (32 + 2 * 8) * 128;\n", "  p.D = 128;\n"})
    CHECK_MESSAGE(unit.find(constant) != std::string::npos, constant);
  CHECK(unit.find("key_gradient_tiles<128>") != std::string::npos);
  // The source's own bounds, so that both compilers leave room for as many blocks.
  CHECK(unit.find("launch_bounds(128, kBlocksOfQueries<128>)") != std::string::npos);
  CHECK(unit.find("launch_bounds(128))) void shardrun_attention_key_gradient") != std::string::npos);
  CHECK(kernels::cuda::kernel_names(kShape) ==
        std::vector<std::string>{"query_gradient_tiles<128>", "key_gradient_tiles<128>"});
  // A head size that the tensor cores' kernels do not take, and a row that 16 bytes do not divide.
  KernelShape plain = kShape;
  plain.size = 96;
  CHECK(kernels::cuda::translation_unit(plain).find("attention.cu\"") != std::string::npos);
  const KernelShape odd{Op::kRmsNormForward, DType::kBf16, 1001, Target::kCuda};
  CHECK(kernels::cuda::translation_unit(odd).find("rmsnorm_rows<1, false, Bf16>") != std::string::npos);
  CHECK(kernels::cuda::entry_names(odd).size() == 2);
}

TEST_CASE("a_gpus_entry_is_named_by_architecture_compiler_and_shape") {
  const auto digest = [](const KernelShape& shape, const std::string& compiler,
                         const std::string& architecture) {
    return digest_of(recipe_of(shape, compiler, {"--gpu-architecture=" + architecture}));
  };
  const std::string ours = digest(kShape, "NVRTC 13.0", "sm_90");
  CHECK(ours == digest(kShape, "NVRTC 13.0", "sm_90"));
  CHECK(ours != digest(kShape, "NVRTC 13.0", "sm_80"));
  CHECK(ours != digest(kShape, "NVRTC 12.9", "sm_90"));
  KernelShape other = kShape;
  other.kv_heads = 32;
  CHECK(ours != digest(other, "NVRTC 13.0", "sm_90"));
  other = kShape;
  other.target = Target::kCpu;
  other.heads = other.kv_heads = 0;
  CHECK(ours != digest(other, "NVRTC 13.0", "sm_90"));
}

TEST_CASE("what_nvrtc_reads_needs_no_header_but_those_it_is_given") {
  std::vector<std::string_view> names;
  for (const kernels::SourceFile& file : sources_of(Target::kCuda)) names.push_back(file.path);
  for (const kernels::SourceFile& file : sources_of(Target::kCuda)) {
    // Lines between #ifndef __CUDACC_RTC__ and #endif or #else are not read.
    bool read = true;
    std::string_view rest = file.text;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.rfind("#ifndef __CUDACC_RTC__", 0) == 0) read = false;
      if (line.rfind("#endif", 0) == 0 || line.rfind("#else", 0) == 0) read = true;
      if (!read || line.rfind("#include ", 0) != 0) continue;
      const std::string_view name = line.substr(10, line.size() - 11);
      CAPTURE(file.path);
      CAPTURE(name);
      CHECK(std::find(names.begin(), names.end(), name) != names.end());
    }
  }
}
