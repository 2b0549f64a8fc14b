#include "tests/emulation/context.h"

namespace shardrun::emulation {

thread_local ThreadState of_thread;

Context& context() {
  static Context* const one = [] {
    auto* const made = new Context;  // outlives whoever frees memory at exit
    made->memory.close();
    return made;
  }();
  return *one;
}

CUstream_st& stream_of(Context& c, cudaStream_t stream) {
  return stream == nullptr ? c.null_stream : *stream;
}

void keep_default_order(Context& c, const CUstream_st& stream) {
  if (!stream.is_blocking) return;
  if (stream.number != c.null_stream.number)
    return c.queues.put_wait(stream.number, c.queues.end_of(c.null_stream.number));
  for (const CUstream_st* other : c.streams) {
    if (other->is_blocking) c.queues.put_wait(stream.number, c.queues.end_of(other->number));
  }
}

Marker put(Context& c, cudaStream_t stream, Work work) {
  CUstream_st& on = stream_of(c, stream);
  if (on.captured) {
    if (of_thread.capturing != &on) of_thread.capture_is_broken = true;
    on.captured->push_back(std::move(work));
    return {};
  }
  keep_default_order(c, on);
  return c.queues.put(on.number, [&c, work = std::move(work)] {
    if (c.failure == cudaSuccess) work();
  });
}

void finish(Context& c, const Marker& marker) {
  if (!c.queues.is_done(marker)) with_memory(c, [&] { c.queues.finish(marker); });
}
void finish_all(Context& c) {
  with_memory(c, [&] { c.queues.finish_all(); });
}
cudaError_t query(Context& c, const Marker& marker) {
  if (c.queues.is_done(marker)) return cudaSuccess;
  with_memory(c, [&] { c.queues.step_towards(marker); });
  return cudaErrorNotReady;
}

}  // namespace shardrun::emulation
