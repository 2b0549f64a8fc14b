// Redaction: takes secrets out of what a rank's program prints, before any file has it.
//
// A secret is the value of a variable that [environment] takes by reference, or of an inherited variable whose name
// looks like a secret's (spec::looks_secret). It is found byte for byte, also when it arrives in pieces, and
// replaced by "[redacted NAME]". Values of less than kShortestSecret bytes are left alone: they would be found
// everywhere. Of a value of several lines each long line is a secret, too, and of a URL with a password that password.
// A private key in PEM is taken out whoever has it, from its first line to its last, whatever stands before each line.
//
// Thread rule: thread-compatible; pure apart from the buffer.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/spec/job_spec.h"

namespace shardrun::rank {

inline constexpr size_t kShortestSecret = 6;

struct Secret {
  std::string name, value;
};

// Returns the secrets of a rank whose spec has this [environment] and that inherits these "NAME=value". A reference
// that leads nowhere has no value that could be printed; the program's start reports it.
std::vector<Secret> find_secrets(const std::map<std::string, spec::EnvironmentValue>& environment,
                                 const std::vector<std::string>& inherited);

// Takes private keys in PEM out of one stream of bytes; "[redacted private key]" takes the place of each.
class PrivateKeys {
 public:
  using Sink = std::function<void(std::string_view bytes)>;
  void append(std::string_view bytes, const Sink& sink);
  void finish(const Sink& sink);

 private:
  bool pass_to_key(std::string& out);
  bool skip_key();

  std::string pending_;      // what may be the beginning of a first or of a last line
  bool inside_ = false;      // a key
  size_t hidden_bytes_ = 0;  // of that key
};

// Takes secrets out of one stream of bytes.
class Redactor {
 public:
  using Sink = std::function<void(std::string_view bytes)>;

  explicit Redactor(std::vector<Secret> secrets);

  // Passes on the bytes that are certainly no part of a secret. An end that may be the beginning of a secret waits
  // for more bytes.
  void append(std::string_view bytes, const Sink& sink);
  // Ends the stream: nothing waits any longer.
  void finish(const Sink& sink);

 private:
  struct Match {
    size_t at;
    const Secret* secret;
  };
  Match first_match() const;
  size_t unfinished_match() const;

  std::vector<Secret> secrets_;  // the longest comes first
  std::string pending_;
  PrivateKeys keys_;
};

}  // namespace shardrun::rank
