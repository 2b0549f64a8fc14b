#include "runtime/contract/sealed_lines.h"

#include <cerrno>

namespace shardrun::contract {
namespace {

constexpr std::string_view kOpening = "nonce ";
constexpr size_t kMarkBytes = 16;
constexpr size_t kMarkDigits = 2 * kMarkBytes;

}  // namespace

base::Result<common::Key> random_key() {
  common::Key key;
  if (!common::fill_random(&key)) return base::errno_error(base::Code::kIo, "random numbers", errno);
  return key;
}

base::Result<std::string> new_run_identity() {
  ASSIGN_OR_RETURN(const common::Key key, random_key());
  return common::to_hex(common::bytes_of(key)).substr(0, 32);
}

std::string proof_of_key(const common::Key& key, std::string_view purpose, std::string_view words) {
  const common::Digest digest = common::KeyedHash(key)({purpose, words});
  return common::to_hex(common::bytes_of(digest));
}

SealedLines::SealedLines(Side side, const common::Key& key, const common::Key& nonce)
    : side_(side), key_(key), nonce_(nonce) {}

std::string SealedLines::opening() const {
  return std::string(kOpening) + common::to_hex(common::bytes_of(nonce_));
}

bool SealedLines::take_opening(std::string_view line) {
  common::Key other;
  if (!line.starts_with(kOpening) || !common::from_hex(line.substr(kOpening.size()), &other)) return false;
  const bool server = side_ == Side::kServer;
  const common::Digest session =
      common::KeyedHash(key_)({"shardrun lines 1", common::bytes_of(server ? nonce_ : other),
                               common::bytes_of(server ? other : nonce_)});
  session_.emplace(session);
  return true;
}

std::string SealedLines::mark(Side side, uint64_t number, std::string_view text) const {
  const char letter = static_cast<char>(side);
  const common::Digest digest =
      (*session_)({std::string_view(&letter, 1),
                   std::string_view(reinterpret_cast<const char*>(&number), sizeof number), text});
  return common::to_hex(common::bytes_of(digest).substr(0, kMarkBytes));
}

std::string SealedLines::seal(std::string_view text) {
  std::string line = mark(side_, sealed_++, text);
  line += ' ';
  line += text;
  return line;
}

std::optional<std::string> SealedLines::unseal(std::string_view line) {
  if (!open() || line.size() <= kMarkDigits || line[kMarkDigits] != ' ') return std::nullopt;
  const std::string_view text = line.substr(kMarkDigits + 1);
  const Side other = side_ == Side::kServer ? Side::kClient : Side::kServer;
  if (!common::same_bytes(line.substr(0, kMarkDigits), mark(other, unsealed_, text))) return std::nullopt;
  ++unsealed_;
  return std::string(text);
}

}  // namespace shardrun::contract
