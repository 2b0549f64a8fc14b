// Recipe: all that decides what a specialised kernel's machine code is, and so the name of its cache entry.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernels/specialised.h"

namespace shardrun::compile {

struct Recipe {
  kernels::KernelShape shape;
  std::string compiler;            // what it calls itself: Compiler::identity()
  std::vector<std::string> flags;  // language, optimisation, kind of processor
  std::string translation_unit;
};

// Of this build's sources for this machine's processor.
Recipe recipe_of(const kernels::KernelShape& shape, const std::string& compiler_identity);

// SHA-256 over the recipe and every source file; the same wherever the same code would come out.
std::string digest_of(const Recipe& recipe);

}  // namespace shardrun::compile
