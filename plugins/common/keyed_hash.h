// KeyedHash: what only holders of a key can compute: HMAC-SHA256 (RFC 2104, FIPS 180-4) over parts, each of which goes in
// with its length before it, so that no two lists of parts are hashed alike.
//
// SHA-256 is libcrypto's, called by the functions that need no set-up of the library: its newer interface takes a
// millisecond for a process's first hash, these take a tenth of a microsecond each (docs/decisions/0053).
//
// Thread rule: values and free functions; one KeyedHash may be used by any number of threads.
#pragma once

#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

namespace shardrun::common {

using Key = std::array<unsigned char, 32>;
using Digest = std::array<unsigned char, 32>;

// Fills `key` from the kernel's random numbers; waits for them on a machine that has just started. False, with errno, if
// there are none.
inline bool fill_random(Key* key) {
  for (size_t done = 0; done < key->size();) {
    const ssize_t got = ::getrandom(key->data() + done, key->size() - done, 0);
    if (got < 0 && errno != EINTR) return false;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return true;
}

inline std::string_view bytes_of(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

// Takes equally long wherever the two differ; the lengths are no secret.
inline bool same_bytes(std::string_view left, std::string_view right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

inline std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// False unless the text is the hexadecimal form, in small letters, of exactly one key.
inline bool from_hex(std::string_view text, Key* key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 2 * key->size()) return false;
  for (size_t i = 0; i < key->size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]), low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    (*key)[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return true;
}

class KeyedHash {
 public:
  explicit KeyedHash(const Key& key) {
    std::array<unsigned char, SHA256_CBLOCK> inner{}, outer{};
    for (size_t i = 0; i < inner.size(); ++i) {
      const unsigned char byte = i < key.size() ? key[i] : 0;
      inner[i] = byte ^ 0x36;
      outer[i] = byte ^ 0x5c;
    }
    SHA256_Init(&inner_);
    SHA256_Update(&inner_, inner.data(), inner.size());
    SHA256_Init(&outer_);
    SHA256_Update(&outer_, outer.data(), outer.size());
  }

  Digest operator()(std::initializer_list<std::string_view> parts) const {
    SHA256_CTX inner = inner_, outer = outer_;
    for (const std::string_view part : parts) {
      const uint64_t size = part.size();
      SHA256_Update(&inner, &size, sizeof size);
      SHA256_Update(&inner, part.data(), part.size());
    }
    Digest digest;
    SHA256_Final(digest.data(), &inner);
    SHA256_Update(&outer, digest.data(), digest.size());
    SHA256_Final(digest.data(), &outer);
    return digest;
  }

 private:
  SHA256_CTX inner_, outer_;  // after the key's block
};

}  // namespace shardrun::common
