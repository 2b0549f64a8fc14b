// The checkpoints that a word on a command line names.
//
// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/trainer/checkpoint/store.h"

namespace shardrun::tools {

struct NamedCheckpoints {
  checkpoint::Store store;
  std::vector<int64_t> steps;  // newest first, at least one
};

// Takes the folder of a checkpoint, or of several. kNotFound when there is none, kInvalid when it was renamed; kIo.
base::Result<NamedCheckpoints> find_checkpoints(const std::string& folder);

// Returns what `read` does for the newest step that is not damaged, and warns of those passed over.
template <typename Read>
auto read_newest(const NamedCheckpoints& named, const Read& read) {
  for (auto step = named.steps.begin();; ++step) {
    auto done = read(*step);
    if (done || done.error().code() != base::Code::kCorrupt || step + 1 == named.steps.end()) return done;
    fmt::print(stderr, "shardrun: warning: checkpoint {} is damaged and passed over: {}\n",
               named.store.path_of(*step), done.error().to_string());
  }
}

}  // namespace shardrun::tools
