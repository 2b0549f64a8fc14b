// What ranks compute while collectives are timed beside it: something that needs its caches as a layer does.
#pragma once

#include <functional>

namespace shardrun::measure {

// Returns work of about a tenth of a millisecond on one CPU: a product of activations with weights in bf16, each time with other
// weights, 4 MiB of them in turn, on the rank's OpenMP threads. Whoever holds it holds the buffers.
// Thread rule: called by one thread.
std::function<void()> layer_work();

}  // namespace shardrun::measure
