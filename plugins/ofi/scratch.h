// Scratch: the memory in which a channel's running operations receive what they sum.
//
// Pages are mapped when an operation first needs them and stay with the channel, so a channel never holds more than
// its largest operations, as many as run at once: what comm_v1.h promises to the host.
//
// Thread rule: the engine's thread; any thread once that one has halted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/ofi/status.h"

namespace shardrun::ofi {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  // Gives page-aligned memory that lasts until give_back(*memory); null for 0 bytes. IO when there is not that much.
  Status take(uint64_t bytes, std::byte** memory);
  void give_back(const std::byte* memory);

 private:
  struct Piece {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    bool is_taken = false;
  };
  std::vector<Piece> pieces_;
};

}  // namespace shardrun::ofi
