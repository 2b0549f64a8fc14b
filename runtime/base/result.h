// Result<T> and Error: how every fallible function of shardrun reports failure.
//
// A function that can fail returns Result<T> (or Result<void>). We throw nothing; libraries that throw are fenced
// in the one .cpp file that includes them. An Error holds a closed code for programs, one line for people, where it
// was made, and the earlier error that caused it.
//
//   ASSIGN_OR_RETURN(const int port, parse_port(text));     // an error leaves the function as it is
//   auto plugin = open(path);
//   if (!plugin) return std::move(plugin).error().context("reading [communication]");
//
// Result has the member names of std::expected, so that an alias can replace it under C++23.
// Thread rule: values; share nothing.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::base {

enum class Code {
  kInvalid,      // bad input from a person: a job spec, a flag, an environment variable
  kRefused,      // understood, but must not be done (would lose data, cannot work)
  kNotFound,     // a file, plugin, program or job is not there
  kIo,           // the operating system refused a read, write, fork, socket…
  kTimeout,      // a peer or a command did not answer in time
  kPeerLost,     // another rank died or closed its connection
  kCorrupt,      // bytes do not match their format or checksum
  kUnsupported,  // this build or machine cannot do it
  kCancelled,    // stopped on request
};

const char* code_name(Code code);

// One failure. Copyable; the cause chain is shared and immutable.
class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : code_(code), message_(std::move(message)), file_(file), line_(line) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const Error* cause() const { return cause_.get(); }

  // Returns a new error with the same code and ranks whose cause is this one: says what only the caller knows.
  Error context(std::string what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) const;

  // Global ranks that did not answer or are lost, for programs; empty if the error is about none in particular.
  const std::vector<int>& ranks() const { return ranks_; }
  Error about(std::vector<int> ranks) &&;

  // Returns "what the caller did: what went wrong: the system's words", on one line.
  std::string to_string() const;
  // Returns one line per link, each with file and line of our source; for --verbose.
  std::string to_chain_string() const;

 private:
  Code code_;
  std::string message_;
  const char* file_;
  int line_;
  std::shared_ptr<const Error> cause_;
  std::vector<int> ranks_;
};

// Makes an error from errno: "open /x: No such file or directory (errno 2)". Pass errno as read right after the
// call. Of a disk that is full it says what to do.
Error errno_error(Code code, std::string_view what, int error_number, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE());

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::make_unique<Error>(std::move(error))) {}

  bool has_value() const { return error_ == nullptr; }
  explicit operator bool() const { return has_value(); }
  void value() const {}
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::unique_ptr<Error> error_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view state);

}  // namespace shardrun::base

// Returns from the function with the error of `expression` if it failed.
#define RETURN_IF_ERROR(...)                                       \
  do {                                                             \
    auto&& result_of_step = (__VA_ARGS__);                         \
    if (!result_of_step) return std::move(result_of_step).error(); \
  } while (false)

// Declares what stands before the comma with the value of the expression behind it, or leaves the function with its error:
//   ASSIGN_OR_RETURN(const auto port, parse_port(text));
#define ASSIGN_OR_RETURN(declaration, ...) \
  SHARDRUN_ASSIGN_OR_RETURN(SHARDRUN_CONCAT(result_of_line_, __LINE__), declaration, (__VA_ARGS__))
#define SHARDRUN_ASSIGN_OR_RETURN(result, declaration, expression) \
  auto result = expression;                                        \
  if (!result) return std::move(result).error();                   \
  declaration = std::move(result).value()
#define SHARDRUN_CONCAT_INNER(a, b) a##b
#define SHARDRUN_CONCAT(a, b) SHARDRUN_CONCAT_INNER(a, b)

// Checks a promise of our own code (never of input, environment or peers): if it is broken, prints the state and
// aborts.
#define SHARDRUN_CHECK(condition, ...)                                                                \
  do {                                                                                                \
    if (!(condition)) ::shardrun::base::check_failed(#condition, __FILE__, __LINE__, "" __VA_ARGS__); \
  } while (false)
