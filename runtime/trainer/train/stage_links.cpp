#include "runtime/trainer/train/stage_links.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace shardrun::train {

StageGroups StageGroups::of(const plan::Stage& stage, std::span<comm::Communicator* const> links) {
  const bool is_ring = stage.chunks > 1;
  SHARDRUN_CHECK(links.size() == (is_ring ? 6 : 4));
  StageGroups groups;
  const auto link = [&](int from, bool gradients) {
    const bool is_last = from < 0 || from + 1 == stage.stages;
    return links[2 * (is_last ? 2 : from % 2) + int{gradients}];
  };
  if (is_ring || !stage.is_first()) {
    groups.from_before = link(stage.number - 1, false);
    groups.to_before = link(stage.number - 1, true);
  }
  if (is_ring || !stage.is_last()) {
    groups.to_next = link(stage.number, false);
    groups.from_next = link(stage.number, true);
  }
  return groups;
}

Result<StageLinks> StageLinks::create(const plan::Stage& stage, const StageGroups& groups, int64_t bytes) {
  StageLinks links;
  links.stage_ = stage;
  const int before = (stage.number + stage.stages - 1) % stage.stages;
  const int next = (stage.number + 1) % stage.stages;
  links.from_before_ = {groups.from_before, before};
  links.to_before_ = {groups.to_before, before};
  links.from_next_ = {groups.from_next, next};
  links.to_next_ = {groups.to_next, next};
  for (Wire* wire : {&links.from_before_, &links.to_before_, &links.from_next_, &links.to_next_})
    RETURN_IF_ERROR(wire->take_memory(bytes));
  return links;
}

// Where the model begins, a chunk gets no activations, and where it ends no gradients.
Result<void> StageLinks::begin(int64_t micro_steps, bool backward) {
  RETURN_IF_ERROR(from_before_.expect(micro_steps * (stage_.chunks - int{stage_.is_first()})));
  return from_next_.expect(backward ? micro_steps * (stage_.chunks - int{stage_.is_last()}) : 0);
}

Result<void> StageLinks::receive(const plan::Turn& turn, const model::StageBorder& border) {
  if (turn.forward) return stage_.begins(turn.chunk) ? Result<void>() : from_before_.receive(border.input);
  return stage_.ends(turn.chunk) ? Result<void>() : from_next_.receive(border.gradient);
}

Result<void> StageLinks::send(const plan::Turn& turn, const model::StageBorder& border) {
  if (turn.backward) return stage_.begins(turn.chunk) ? Result<void>() : to_before_.send(border.gradient);
  return stage_.ends(turn.chunk) ? Result<void>() : to_next_.send(border.output);
}

Result<void> StageLinks::finish() {
  RETURN_IF_ERROR(to_before_.wait());
  return to_next_.wait();
}

Result<void> StageLinks::Wire::take_memory(int64_t bytes) {
  if (pair == nullptr) return {};
  SHARDRUN_CHECK(pair->size() == 2);
  auto taken = base::Memory::create(bytes);
  if (!taken) return std::move(taken).error().context("messages between stages");
  memory = std::move(taken).value();
  return {};
}

Result<void> StageLinks::Wire::expect(int64_t messages) {
  if (pair == nullptr) return {};  // of a job without stages
  SHARDRUN_CHECK(expected == 0 && !pending);
  expected = messages;
  return ask();
}

Result<void> StageLinks::Wire::ask() {
  if (expected == 0) return {};
  --expected;
  return start(/*sends=*/false);
}

Result<void> StageLinks::Wire::receive(std::span<std::byte> to) {
  SHARDRUN_CHECK(pending && std::ssize(to) == memory.bytes());
  RETURN_IF_ERROR(wait());
  std::copy_n(memory.data(), to.size(), to.data());
  return ask();
}

Result<void> StageLinks::Wire::send(std::span<const std::byte> from) {
  SHARDRUN_CHECK(std::ssize(from) == memory.bytes());
  RETURN_IF_ERROR(wait());
  std::copy_n(from.data(), from.size(), memory.data());
  return start(/*sends=*/true);
}

Result<void> StageLinks::Wire::wait() {
  if (!pending) return {};
  if (auto done = pair->wait(*std::exchange(pending, {})); !done)
    return std::move(done).error().context(fmt::format("activations between this stage and stage {}", stage));
  return {};
}

// The parts of both ranks are empty but for the message.
Result<void> StageLinks::Wire::start(bool sends) {
  const std::span<std::byte> message(memory.data(), static_cast<size_t>(memory.bytes()));
  std::array<int64_t, 2> sent{}, received{};
  (sends ? sent : received)[1 - pair->rank()] = memory.bytes();
  ASSIGN_OR_RETURN(pending, pair->all_to_all({.send = sends ? message : std::span<std::byte>(),
                                              .send_bytes = sent,
                                              .receive = sends ? std::span<std::byte>() : message,
                                              .receive_bytes = received}));
  return {};
}

}  // namespace shardrun::train
