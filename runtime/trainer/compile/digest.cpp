#include "runtime/trainer/compile/digest.h"

#include <openssl/evp.h>

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/result.h"

namespace shardrun::compile {

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest;
  unsigned int length = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  SHARDRUN_CHECK(done == 1 && length == digest.size());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace shardrun::compile
