// The time of day, as documents and messages carry it.
//
// Thread rule: pure functions but for the clock.
#pragma once

#include <time.h>

#include <chrono>
#include <string>

namespace shardrun::base {

// Returns the Unix seconds of now, with their fraction.
inline double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a moment in UTC as strftime(3) writes it; for one before 1970 or past the year 9999 the first of 1970.
inline std::string utc_text(double unix_seconds, const char* format) {
  constexpr double kYear10000 = 253402300800.0;
  const bool is_usual = unix_seconds >= 0.0 && unix_seconds < kYear10000;
  const auto seconds = static_cast<time_t>(is_usual ? unix_seconds : 0.0);
  struct tm parts {};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  ::strftime(text, sizeof(text), format, &parts);
  return text;
}

}  // namespace shardrun::base
