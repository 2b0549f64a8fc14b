// SealedLines: one side of a connection, line by line, between two processes that hold the key of an attempt.
//
//   server → client   nonce <64 hexadecimal digits>
//   client → server   nonce <64 hexadecimal digits>, and at once its first sealed line
//   either → other    <32 hexadecimal digits> <text>
//
// The digits of a sealed line are the first half of HMAC-SHA256 over the sender's side, the number of its line and the
// text, under a key that follows from the attempt's key and both nonces. So a line proves that its sender holds the
// key, and that it is meant for this connection, this direction and this place: none can be forged, repeated, left
// out, turned round or carried over from another connection. The text itself can be read by whoever sees the wire.
// The client's first sealed line proves the client to the server, the server's first the server to the client; nothing
// that depends on a secret is sent before.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plugins/common/keyed_hash.h"
#include "runtime/base/result.h"

namespace shardrun::contract {

// kIo when the kernel has no random numbers.
base::Result<common::Key> random_key();
// Returns 32 random hexadecimal digits, by which a run is told from any other. kIo.
base::Result<std::string> new_run_identity();

// Returns 64 hexadecimal digits that only a holder of the key can compute for these words, which serve `purpose`.
std::string proof_of_key(const common::Key& key, std::string_view purpose, std::string_view words);

inline constexpr size_t kLongestLine = 4096;  // bytes; whoever sends a longer one is no peer

class SealedLines {
 public:
  enum class Side : char { kServer = 's', kClient = 'c' };
  // `nonce` is random and used for one connection only.
  SealedLines(Side side, const common::Key& key, const common::Key& nonce);

  // Returns the line that opens this side of the connection. Lines are without their newline, here and below.
  std::string opening() const;
  // Takes the other side's opening; false when the line is none.
  bool take_opening(std::string_view line);
  // Whether the other side's opening has come: then lines can be sealed and unsealed.
  bool open() const { return session_.has_value(); }

  // Requires open().
  std::string seal(std::string_view text);
  // Returns the text of the other side's next line; nullopt when it is not that: then the connection is to be closed.
  std::optional<std::string> unseal(std::string_view line);

 private:
  std::string mark(Side side, uint64_t number, std::string_view text) const;

  Side side_;
  common::Key key_, nonce_;
  std::optional<common::KeyedHash> session_;
  uint64_t sealed_ = 0, unsealed_ = 0;
};

}  // namespace shardrun::contract
