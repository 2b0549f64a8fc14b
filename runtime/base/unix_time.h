// The time of day, as documents and messages carry it.
//
// Thread rule: a pure function but for the clock.
#pragma once

#include <chrono>

namespace shardrun::base {

// Returns the Unix seconds of now, with their fraction.
inline double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace shardrun::base
