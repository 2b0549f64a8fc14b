// One loop, three translations: how cpu/ chooses instructions at run time.
//
// Loops are written once, as functions that must be inlined; each is inlined into three shells that the compiler
// translates for AVX-512, AVX2 and the baseline. Nothing but the shells may use the wide registers, so no machine
// can meet an instruction that it does not know. This header is internal to the .cpp files of kernels/cpu.
//
// Thread rule: pure.
#pragma once

#include "runtime/trainer/kernels/cpu/vector.h"

#define SHARDRUN_INLINE inline __attribute__((always_inline))
#if defined(__x86_64__)
#define SHARDRUN_AVX2 __attribute__((target("avx2,fma")))
#define SHARDRUN_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define SHARDRUN_AVX2
#define SHARDRUN_AVX512
#endif

namespace shardrun::kernels::vector {

template <auto Body, typename... Arguments>
auto on_baseline(Arguments... arguments) {
  return Body(arguments...);
}
template <auto Body, typename... Arguments>
SHARDRUN_AVX2 auto on_avx2(Arguments... arguments) {
  return Body(arguments...);
}
template <auto Body, typename... Arguments>
SHARDRUN_AVX512 auto on_avx512(Arguments... arguments) {
  return Body(arguments...);
}

// Runs the body in the shell of this machine. A body may differ by level, e.g. in the width of its tiles.
template <auto Baseline, auto Avx2 = Baseline, auto Avx512 = Baseline, typename... Arguments>
SHARDRUN_INLINE auto dispatch(Arguments... arguments) {
  switch (instruction_set()) {
    case InstructionSet::kAvx512:
      return on_avx512<Avx512>(arguments...);
    case InstructionSet::kAvx2:
      return on_avx2<Avx2>(arguments...);
    case InstructionSet::kBaseline:
      break;
  }
  return on_baseline<Baseline>(arguments...);
}

}  // namespace shardrun::kernels::vector
