#include "tests/emulation/queue.h"

#include <utility>
#include <vector>

#include "tests/emulation/settings.h"

namespace shardrun::emulation {

uint64_t Queues::create() {
  streams_.emplace(next_, Stream{});
  return next_++;
}

void Queues::destroy(uint64_t stream) {
  finish(end_of(stream));
  streams_.erase(stream);
}

Marker Queues::put(uint64_t stream, Work work) {
  streams_.at(stream).items.emplace_back(std::move(work));
  return end_of(stream);
}

void Queues::put_wait(uint64_t stream, const Marker& marker) {
  if (!is_done(marker)) streams_.at(stream).items.emplace_back(marker);
}

Marker Queues::end_of(uint64_t stream) const {
  const Stream& of = streams_.at(stream);
  return {stream, of.done + of.items.size()};
}

bool Queues::is_done(const Marker& marker) const {
  const auto found = streams_.find(marker.stream);
  return found == streams_.end() || found->second.done >= marker.position;
}

bool Queues::can_step(const Stream& stream) const {
  if (stream.items.empty()) return false;
  const Marker* const marker = std::get_if<Marker>(&stream.items.front());
  return marker == nullptr || is_done(*marker);
}

void Queues::step(Stream& stream) {
  const std::variant<Work, Marker> item = std::move(stream.items.front());
  stream.items.pop_front();
  ++stream.done;
  if (const Work* const work = std::get_if<Work>(&item)) (*work)();
}

void Queues::step_late(uint64_t stream) {
  Stream& of = streams_.at(stream);
  if (const Marker* const marker = std::get_if<Marker>(&of.items.front())) {
    const Marker awaited = *marker;
    while (!is_done(awaited)) step_late(awaited.stream);
  }
  step(of);
}

void Queues::run_others(uint64_t stream) {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto of = streams_.rbegin(); of != streams_.rend(); ++of) {
      if (of->first == stream) continue;
      for (; can_step(of->second); moved = true) step(of->second);
    }
  }
}

bool Queues::step_by_chance() {
  std::vector<Stream*> ready;
  for (auto& [number, stream] : streams_) {
    if (can_step(stream)) ready.push_back(&stream);
  }
  if (ready.empty()) return false;
  step(*ready[chance()() % ready.size()]);
  return true;
}

void Queues::step_towards(const Marker& marker) {
  if (is_done(marker)) return;
  switch (choice()) {
    case Choice::kFirst:
      return step_late(marker.stream);
    case Choice::kLast:
      run_others(marker.stream);
      return step_late(marker.stream);
    case Choice::kRandom:
      step_by_chance();
  }
}

void Queues::finish(const Marker& marker) {
  while (!is_done(marker)) step_towards(marker);
}

void Queues::finish_all() {
  std::vector<uint64_t> numbers;
  for (const auto& [number, stream] : streams_) numbers.push_back(number);
  for (const uint64_t number : numbers) finish(end_of(number));
}

}  // namespace shardrun::emulation
