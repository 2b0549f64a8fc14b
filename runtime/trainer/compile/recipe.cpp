#include "runtime/trainer/compile/recipe.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/trainer/compile/digest.h"
#include "runtime/trainer/kernels/cuda/specialised.h"

namespace shardrun::compile {

Recipe recipe_of(const kernels::KernelShape& shape, const std::string& compiler_identity,
                 std::vector<std::string> flags) {
  std::string unit = shape.target == kernels::Target::kCuda ? kernels::cuda::translation_unit(shape)
                                                            : kernels::translation_unit(shape);
  return {shape, compiler_identity, std::move(flags), std::move(unit)};
}

std::span<const kernels::SourceFile> sources_of(kernels::Target target) {
  return target == kernels::Target::kCuda ? kernels::cuda::kernel_sources() : kernels::kernel_sources();
}

std::string digest_of(const Recipe& recipe) {
  // Each piece behind its length: no two recipes can run together to the same text.
  std::string text;
  const auto add = [&](std::string_view piece) { text += fmt::format("{}:{}\n", piece.size(), piece); };
  add(kernels::name_of(recipe.shape));
  add(recipe.compiler);
  for (const std::string& flag : recipe.flags) add(flag);
  add(recipe.translation_unit);
  for (const kernels::SourceFile& file : sources_of(recipe.shape.target)) {
    add(file.path);
    add(file.text);
  }
  return sha256_hex(text);
}

}  // namespace shardrun::compile
