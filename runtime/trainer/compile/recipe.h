// Recipe: all that decides what a specialised kernel's machine code is, and so the name of its cache entry.
//
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/trainer/kernels/specialised.h"

namespace shardrun::compile {

struct Recipe {
  kernels::KernelShape shape;
  std::string compiler;            // what it calls itself: Compiler::identity()
  std::vector<std::string> flags;  // language, optimisation, kind of processor
  std::string translation_unit;
};

// Of this build's sources; identity and flags are the compiler's.
Recipe recipe_of(const kernels::KernelShape& shape, const std::string& compiler_identity,
                 std::vector<std::string> flags);

// Every file that the translation unit of such a kernel includes.
std::span<const kernels::SourceFile> sources_of(kernels::Target target);

// SHA-256 over the recipe and every source file; the same wherever the same code would come out.
std::string digest_of(const Recipe& recipe);

}  // namespace shardrun::compile
