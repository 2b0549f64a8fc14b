#include "plugins/ofi/liveness_message.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace shardrun::ofi {
namespace {

constexpr size_t kLongestText = 1000;
constexpr size_t kMostRanks = 256;

struct Header {
  std::array<char, 16> mark;
  uint32_t kind;
  uint32_t global_rank;
  int32_t code;
  uint32_t text_bytes;  // length of the text that follows
  uint32_t rank_count;  // number of the failure's ranks, 4 bytes each, which follow the text
  uint32_t reserved;
};

std::array<char, 16> mark_of(const LivenessPlace& place, std::string_view unmarked,
                             const common::KeyedHash& key) {
  const std::array<uint64_t, 3> numbers = {place.from, place.to, place.number};
  const common::Digest digest =
      key({"liveness", {reinterpret_cast<const char*>(numbers.data()), sizeof numbers}, unmarked});
  std::array<char, 16> mark;
  std::memcpy(mark.data(), digest.data(), mark.size());
  return mark;
}

}  // namespace

std::string pack(const LivenessMessage& message, const LivenessPlace& place, const common::KeyedHash& key) {
  const Status& failure = message.failure;
  const std::string_view text = std::string_view(failure.text).substr(0, kLongestText);
  const size_t ranks = std::min(failure.ranks.size(), kMostRanks);
  Header header{};
  header.kind = message.kind;
  header.global_rank = message.global_rank;
  header.code = failure.code;
  header.text_bytes = static_cast<uint32_t>(text.size());
  header.rank_count = static_cast<uint32_t>(ranks);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  bytes.append(reinterpret_cast<const char*>(failure.ranks.data()), ranks * sizeof(uint32_t));
  const auto mark = mark_of(place, std::string_view(bytes).substr(sizeof header.mark), key);
  std::copy(mark.begin(), mark.end(), bytes.begin());
  return bytes;
}

Unpacked unpack(std::string* bytes, uint32_t world_size, LivenessPlace* place, const common::KeyedHash& key,
                LivenessMessage* message) {
  Header header;
  if (bytes->size() < sizeof header) return Unpacked::kMore;
  std::memcpy(&header, bytes->data(), sizeof header);
  LivenessPlace at = *place;
  const bool unnamed = at.from == UINT32_MAX;
  if (unnamed) at.from = header.global_rank;
  if (header.kind < LivenessMessage::kHello || header.kind > LivenessMessage::kFailure ||
      header.text_bytes > kLongestText || header.rank_count > kMostRanks ||
      header.global_rank >= world_size || (unnamed && header.kind != LivenessMessage::kHello)) {
    return Unpacked::kForeign;
  }
  const size_t size = sizeof header + header.text_bytes + header.rank_count * sizeof(uint32_t);
  if (bytes->size() < size) return Unpacked::kMore;
  const auto mark =
      mark_of(at, std::string_view(*bytes).substr(sizeof header.mark, size - sizeof header.mark), key);
  if (!common::same_bytes({mark.data(), mark.size()}, {header.mark.data(), header.mark.size()}))
    return Unpacked::kForeign;

  *message = {
      header.kind, header.global_rank, {header.code, bytes->substr(sizeof header, header.text_bytes)}};
  std::vector<uint32_t>& ranks = message->failure.ranks;
  ranks.resize(header.rank_count);
  std::copy_n(bytes->data() + sizeof header + header.text_bytes, header.rank_count * sizeof(uint32_t),
              reinterpret_cast<char*>(ranks.data()));
  ranks.erase(std::remove_if(ranks.begin(), ranks.end(), [&](uint32_t rank) { return rank >= world_size; }),
              ranks.end());
  bytes->erase(0, size);
  *place = at;
  return Unpacked::kWhole;
}

}  // namespace shardrun::ofi
