// The records of a TensorBoard event file: scalars and texts by step, as TensorBoard and everything that reads its files takes them.
//
// A record is its length, a checksum of that, an Event and a checksum of it; an Event is one message of protocol buffers
// (tensorflow/core/util/event.proto and summary.proto), of which a few fields are enough to be written by hand. The first
// record of a file names the format's version. Source: tensorflow/core/lib/io/record_writer.cc and TensorBoard's
// documentation of event files.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shardrun::record {

struct Scalar {
  std::string_view tag;  // "loss/train": TensorBoard groups by what stands before the slash
  double value = 0.0;    // kept as float
};

// Return one record each; `time` is Unix seconds.
std::string tensorboard_version(double time);
std::string tensorboard_scalars(double time, int64_t step, std::span<const Scalar> scalars);
std::string tensorboard_text(double time, int64_t step, std::string_view tag, std::string_view markdown);

}  // namespace shardrun::record
