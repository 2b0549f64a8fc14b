// Preparing kernels: every one that a job needs is in the cache afterwards, compiled once in the whole cluster.
//
// All ranks of all nodes call this with the same cache and mostly the same kernels. Nobody divides the work: a rank
// takes the lease of the next kernel that is neither there nor leased, dearest first, and waits for the others' when
// nothing is left to take. A rank that dies costs its kernel's time, nothing else.
// Thread rule: thread-safe; `notice` is called by one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/compiler.h"
#include "runtime/trainer/compile/kernel_cache.h"

namespace shardrun::compile {

struct Preparation {
  std::vector<kernels::KernelCode> kernels;  // whose SHA-256 was checked
  double recorded_seconds = 0.0;  // what compiling all of them took, whenever that was and whoever did it
  int compiled = 0;               // by this caller
  double compile_seconds = 0.0;   // those of this caller
};

struct PrepareOptions {
  int workers = 1;  // compilers at once; 0: only wait for others
  std::chrono::seconds longest_wait{600};
  bool forget_failures = false;  // compile again what did not compile the last time
  std::function<void(const std::string&)> notice = [](const std::string&) {};  // damage, long waits
};

// kRefused with the compiler's output when a kernel does not compile, now or before; kTimeout names who holds the
// lease; kIo.
Result<Preparation> prepare(const KernelCache& cache, const Compiler& compiler,
                            std::span<const kernels::KernelShape> shapes, const PrepareOptions& options);

}  // namespace shardrun::compile
