// Compiler: what makes a kernel's code out of its recipe. CxxCompiler, the C++ compiler of this node, is for CPUs; Nvrtc
// (nvrtc.h) for NVIDIA GPUs.
//
// Thread rule: thread-safe after find().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/entry.h"
#include "runtime/trainer/compile/recipe.h"

namespace shardrun::compile {

using base::Result;

class Compiler {
 public:
  virtual ~Compiler() = default;

  // What it calls itself: its version and the machine that it compiles for. Part of every recipe, as the flags are.
  virtual const std::string& identity() const = 0;
  virtual std::vector<std::string> flags() const = 0;

  // The entry to publish: the code, or the compiler's refusal with its output. Files are made in a private folder inside
  // `scratch`. `tick` is called about every second. Errors, which say nothing about the source: kIo, kTimeout, kCancelled
  // when the compiler was killed.
  virtual Result<Entry> compile(const Recipe& recipe, const std::string& scratch,
                                const std::function<void()>& tick) const = 0;

  // Whether code is what the recipe asks for, as far as can be seen without running it. kCorrupt.
  virtual Result<void> check(const Recipe& recipe, const std::string& code) const = 0;
};

class CxxCompiler final : public Compiler {
 public:
  // The first c++ of PATH. kNotFound with the mend; kRefused when others could replace it.
  static Result<CxxCompiler> find();

  const std::string& identity() const override { return identity_; }
  std::vector<std::string> flags() const override;
  Result<Entry> compile(const Recipe& recipe, const std::string& scratch,
                        const std::function<void()>& tick) const override;
  // The dynamic linker looks at it.
  Result<void> check(const Recipe&, const std::string&) const override { return {}; }

 private:
  CxxCompiler() = default;
  std::string path_, identity_;
};

}  // namespace shardrun::compile
