// LivenessMessage: what ranks tell each other over a liveness link, as bytes that only ranks of the job can make.
//
// A message is a header, a text and the ranks of a failure. The header holds the first half of HMAC-SHA256 over who sends it
// to whom, its number on the link (from 0 in each direction) and all of its bytes, under a key of the job. So none can be
// forged, repeated, left out or carried over to another link; there is one link between two ranks in a job's life.
//
// Thread rule: free functions and values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "plugins/common/keyed_hash.h"
#include "plugins/ofi/status.h"

namespace shardrun::ofi {

struct LivenessMessage {
  enum Kind : uint32_t { kHello = 1, kBye = 2, kFailure = 3 };
  uint32_t kind = kHello;
  uint32_t global_rank = 0;  // whom it is about: the sender, or for kFailure who said it first
  Status failure;
};

// The place of a message in the conversation of two ranks.
struct LivenessPlace {
  uint32_t from = 0, to = 0;  // global ranks
  uint64_t number = 0;
};

// A text is cut off after 1000 bytes, and ranks after 256.
std::string pack(const LivenessMessage& message, const LivenessPlace& place, const common::KeyedHash& key);

enum class Unpacked { kWhole, kMore, kForeign };
// Takes the first message out of `bytes`, which a link has received. kMore: not all of it has come. kForeign: it is no
// message of a job of `world_size` ranks, or not one for this place. For a caller who has not said who he is, `place.from`
// is UINT32_MAX: then only a hello will do, and what it names is put there.
Unpacked unpack(std::string* bytes, uint32_t world_size, LivenessPlace* place, const common::KeyedHash& key,
                LivenessMessage* message);

}  // namespace shardrun::ofi
