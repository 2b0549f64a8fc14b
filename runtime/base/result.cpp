#include "runtime/base/result.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace shardrun::base {

const char* code_name(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kRefused:
      return "refused";
    case Code::kNotFound:
      return "not_found";
    case Code::kIo:
      return "io";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer_lost";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Error Error::context(std::string what, const char* file, int line) const {
  Error outer(code_, std::move(what), file, line);
  outer.cause_ = std::make_shared<const Error>(*this);
  outer.ranks_ = ranks_;
  return outer;
}

Error Error::about(std::vector<int> ranks) && {
  ranks_ = std::move(ranks);
  return std::move(*this);
}

std::string Error::to_string() const {
  std::string text = message_;
  for (const Error* link = cause(); link != nullptr; link = link->cause()) text += ": " + link->message();
  return text;
}

std::string Error::to_chain_string() const {
  std::string text;
  for (const Error* link = this; link != nullptr; link = link->cause()) {
    text += fmt::format("{}{} [{}] ({}:{})", text.empty() ? "" : "\n  caused by: ", link->message(),
                        code_name(link->code_), link->file_, link->line_);
  }
  return text;
}

Error errno_error(Code code, std::string_view what, int error_number, const char* file, int line) {
  const char* const mend = error_number == ENOSPC ? "; make room there: `df` and `df -i` show what is full"
                           : error_number == EDQUOT
                               ? "; make room there, or ask for more: `quota -s` shows your share"
                               : "";
  return Error(code,
               fmt::format("{}: {} (errno {}){}", what, std::strerror(error_number), error_number, mend),
               file, line);
}

void check_failed(const char* condition, const char* file, int line, std::string_view state) {
  fmt::print(stderr, "shardrun bug: CHECK({}) failed at {}:{}{}{}\n", condition, file, line,
             state.empty() ? "" : ": ", state);
  std::fflush(stderr);
  std::abort();
}

}  // namespace shardrun::base
