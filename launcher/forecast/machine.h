// What a prediction knows of a machine, and of the model that it trains: counts and peaks, no measurements.
//
// Units: bytes, seconds, FLOP; one accelerator, one direction of a link, unless a name says otherwise.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/model/shape.h"

namespace shardrun::launcher {

// Kinds whose arithmetic is used alike well; constants.h has what each of them reaches.
enum class Generation { kAmpere, kHopper, kTrainium };
inline constexpr int kGenerations = 3;

struct Machine {
  std::string name;
  Generation generation = Generation::kAmpere;
  bool published = true;          // runs on such accelerators were published, and constants fitted on them
  int per_node = 8;               // accelerators
  double peak = 312e12;           // dense bf16 FLOP/s
  double fp8_peak = 0.0;          // 0: none
  double memory_bytes = 42.9e9;   // of one accelerator
  double memory_rate = 1.555e12;  // bytes/s of its memory
  double link_rate = 300e9;       // bytes/s to the others of its node
  double network_rate = 50e9;     // bytes/s of the node
  double host_rate = 20e9;        // bytes/s between accelerator and host memory
  double host_memory = 0.0;       // bytes of a node; 0: not known
  double dollars_per_hour = 0.0;  // of a node; 0: not known
};

using plan::ModelShape;

}  // namespace shardrun::launcher
