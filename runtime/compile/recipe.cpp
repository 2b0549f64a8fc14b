#include "runtime/compile/recipe.h"

#include <fmt/format.h>

#include "runtime/compile/digest.h"

namespace shardrun::compile {

Recipe recipe_of(const kernels::KernelShape& shape, const std::string& compiler_identity) {
  const auto flags = kernels::kernel_flags();
  return {shape, compiler_identity, {flags.begin(), flags.end()}, kernels::translation_unit(shape)};
}

std::string digest_of(const Recipe& recipe) {
  // Each piece behind its length: no two recipes can run together to the same text.
  std::string text;
  const auto add = [&](std::string_view piece) { text += fmt::format("{}:{}\n", piece.size(), piece); };
  add(kernels::name_of(recipe.shape));
  add(recipe.compiler);
  for (const std::string& flag : recipe.flags) add(flag);
  add(recipe.translation_unit);
  for (const kernels::SourceFile& file : kernels::kernel_sources()) {
    add(file.path);
    add(file.text);
  }
  return sha256_hex(text);
}

}  // namespace shardrun::compile
