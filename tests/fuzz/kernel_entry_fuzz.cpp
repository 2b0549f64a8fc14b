// libFuzzer over entries of the kernel cache: the input as a whole entry, and as the payload of one, which must come back.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/cubin.h"
#include "runtime/trainer/compile/entry.h"

using namespace shardrun;
using compile::Entry;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto entry = compile::parse_entry(text)) SHARDRUN_CHECK(compile::to_bytes(*entry) == text);
  (void)compile::parse_cubin(text);
  const auto whole = compile::parse_entry(compile::to_bytes({Entry::Kind::kLibrary, "op", 7, text}));
  SHARDRUN_CHECK(whole && whole->payload == text);
  return 0;
}
