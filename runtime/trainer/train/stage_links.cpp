#include "runtime/trainer/train/stage_links.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace shardrun::train {

StageGroups StageGroups::of(const plan::Stage& stage, std::span<comm::Communicator* const> links) {
  SHARDRUN_CHECK(links.size() == 4);
  StageGroups groups;
  const auto link = [&](int from, bool gradients) { return links[2 * (from % 2) + int{gradients}]; };
  if (!stage.is_first()) {
    groups.from_before = link(stage.number - 1, false);
    groups.to_before = link(stage.number - 1, true);
  }
  if (!stage.is_last()) {
    groups.to_next = link(stage.number, false);
    groups.from_next = link(stage.number, true);
  }
  return groups;
}

Result<StageLinks> StageLinks::create(const plan::Stage& stage, const StageGroups& groups, int64_t bytes) {
  StageLinks links;
  links.from_before_ = {groups.from_before, stage.number - 1};
  links.to_before_ = {groups.to_before, stage.number - 1};
  links.from_next_ = {groups.from_next, stage.number + 1};
  links.to_next_ = {groups.to_next, stage.number + 1};
  for (Wire* wire : {&links.from_before_, &links.to_before_, &links.from_next_, &links.to_next_})
    RETURN_IF_ERROR(wire->take_memory(bytes));
  return links;
}

Result<void> StageLinks::begin(int64_t forwards, int64_t backwards) {
  RETURN_IF_ERROR(from_before_.expect(forwards));
  return from_next_.expect(backwards);
}

Result<void> StageLinks::receive(const plan::Turn& turn, const model::StageBorder& border) {
  if (turn.forward) return from_before_.receive(border.input);
  return from_next_.receive(border.gradient);
}

Result<void> StageLinks::send(const plan::Turn& turn, const model::StageBorder& border) {
  if (turn.backward) return to_before_.send(border.gradient);
  return to_next_.send(border.output);
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
  if (pair == nullptr) return {};
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
  if (pair == nullptr) return {};
  SHARDRUN_CHECK(pending && std::ssize(to) == memory.bytes());
  RETURN_IF_ERROR(wait());
  std::copy_n(memory.data(), to.size(), to.data());
  return ask();
}

Result<void> StageLinks::Wire::send(std::span<const std::byte> from) {
  if (pair == nullptr) return {};
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
