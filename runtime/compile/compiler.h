// Compiler: the C++ compiler of this node.
//
// Thread rule: thread-safe after find().
#pragma once

#include <functional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/compile/entry.h"
#include "runtime/compile/recipe.h"

namespace shardrun::compile {

using base::Result;

class Compiler {
 public:
  // The first c++ of PATH. kNotFound with the mend; kRefused when others could replace it.
  static Result<Compiler> find();

  // What it calls itself: its version and the machine that it compiles for. Part of every recipe.
  const std::string& identity() const { return identity_; }

  // Compiles in a private folder inside `scratch` and returns the entry to publish: the library, or the compiler's
  // refusal with its output. `tick` is called about every second. Errors, which say nothing about the source: kIo,
  // kTimeout, kCancelled when the compiler was killed.
  Result<Entry> compile(const Recipe& recipe, const std::string& scratch,
                        const std::function<void()>& tick) const;

 private:
  std::string path_, identity_;
};

}  // namespace shardrun::compile
