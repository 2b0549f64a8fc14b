// The limits that this process was started with.
//
// Thread rule: thread-safe; they are those of the whole process, and of what it starts afterwards.
#pragma once

#include <cstdint>

#include "runtime/base/result.h"

namespace shardrun::base {

// Raises the limit of open files to `wanted` where it is lower, as far as the hard limit lets it. Returns what it is then.
int64_t make_room_for_descriptors(int64_t wanted);

// kRefused where the stack is so small that libraries would end this process without a word.
Result<void> refuse_small_stack();

}  // namespace shardrun::base
