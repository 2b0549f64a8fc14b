// The C face of a communication plugin: one guard around every entry, the last error of a thread, text for the header.
//
// Thread rule: last_error_text() is each thread's own.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "plugins/common/status.h"

namespace shardrun::common {

inline std::string& last_error_text() {
  thread_local std::string text;
  return text;
}

// Runs `call`, which returns a Status; turns that and any exception into a code and the thread's last error.
template <typename Call>
int32_t guard(Call call) noexcept {
  try {
    Status status = call();
    if (!status.ok()) last_error_text() = std::move(status.text);
    return status.code;
  } catch (const std::bad_alloc&) {
    last_error_text().clear();  // a long text would need memory too
    last_error_text() = "out of memory";
    return SHARDRUN_COMM_IO;
  } catch (const std::exception& error) {
    last_error_text() = error.what();
    return SHARDRUN_COMM_IO;
  }
}

constexpr void copy_text(char* out, std::string_view text, size_t capacity) {
  for (size_t i = 0; i < capacity - 1 && i < text.size(); ++i) out[i] = text[i];
}

}  // namespace shardrun::common
