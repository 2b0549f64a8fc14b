// Control messages of the engine: small questions and answers between the engines' threads, so that a rank
// whose time is up can name those that have not even started the operation.
#include <rdma/fi_errno.h>

#include "plugins/ofi/engine.h"

namespace shardrun::ofi {
namespace {

enum ControlKind : uint32_t { kHowFar = 1, kThisFar = 2, kGreeting = 3 };
constexpr int kControlReceives = 4;  // posted per endpoint

// The same for all senders, who name themselves in the message: receives never ignore tag bits (see fabric.h).
uint64_t control_tag() {
  return make_tag({kControlChannel, 0}, /*kind=*/0, /*step=*/0, /*sender_global_rank=*/0);
}

}  // namespace

void Engine::post_control_receives() {
  for (uint32_t endpoint = 0; endpoint < endpoints_.size(); ++endpoint) {
    for (int i = 0; i < kControlReceives; ++i) {
      ControlSlot& slot = control_receives_.emplace_back();
      slot.endpoint = endpoint;
    }
  }
  // Connections are made by the first message: let those of the first barrier be made at once, not round by round.
  for (uint32_t distance = 1; distance < peers_.size(); distance *= 2) {
    const auto peer = static_cast<uint32_t>((global_rank_ + distance) % peers_.size());
    send_control(kGreeting, peer, 0, 0);
  }
  post_waiting_control();
}

void Engine::ask_question() {
  question_->asked = true;
  const auto channel = channels_.find(question_->channel);
  if (channel == channels_.end()) return;
  for (const uint32_t rank : channel->second->group.global_ranks) {
    if (rank != global_rank_) send_control(kHowFar, rank, question_->channel, question_->ticket);
  }
  for (const auto& active : active_) {
    if (active->channel == channel->second.get() && active->operation->ticket == question_->ticket) {
      question_->awaited = active->operation->awaited();
    }
  }
}

void Engine::send_control(uint32_t kind, uint32_t global_rank, uint32_t channel, uint64_t ticket) {
  ControlSlot& slot = control_sends_.emplace_back();
  slot.endpoint = endpoint_of_[global_rank];
  slot.request.is_send = true;
  slot.request.global_rank = global_rank;
  slot.message = {kind, global_rank_, channel, 0, ticket};
}

// Posts what is not posted yet. True if anything was.
bool Engine::post_waiting_control() {
  bool moved = false;
  int error = 0;
  for (ControlSlot& slot : control_receives_) {
    if (slot.posted) continue;
    slot.posted = endpoints_[slot.endpoint]->receive(&slot.message, sizeof(slot.message), control_tag(),
                                                     &slot.request, &error) == Post::kAccepted;
    moved |= slot.posted;
  }
  for (ControlSlot& slot : control_sends_) {
    if (slot.posted) continue;
    const Post post = endpoints_[slot.endpoint]->send(&slot.message, sizeof(slot.message), control_tag(),
                                                      &slot.request, &error);
    slot.posted = post != Post::kTryAgain;  // one that cannot be sent stays unanswered
    backlog_ |= !slot.posted;
    moved |= slot.posted;
    if (endpoints_[slot.endpoint]->must_ring()) to_ring_.insert(slot.request.global_rank);
  }
  return moved;
}

void Engine::handle_control(const Completion& completion) {
  auto* slot = reinterpret_cast<ControlSlot*>(completion.request);
  if (slot->request.is_send) {
    control_sends_.remove_if([slot](const ControlSlot& other) { return &other == slot; });
    return;
  }
  slot->posted = false;
  const ControlMessage message = slot->message;
  if (completion.error != 0 || completion.bytes != sizeof(message) || message.global_rank >= peers_.size())
    return;
  std::lock_guard lock(mutex_);
  if (message.kind == kHowFar) {
    const auto channel = channels_.find(message.channel);
    send_control(kThisFar, message.global_rank, message.channel,
                 channel == channels_.end() ? 0 : channel->second->posted);
  } else if (message.kind == kThisFar && question_ && question_->channel == message.channel) {
    question_->answers[message.global_rank] = message.ticket;
    changed_.notify_all();
  }
}

}  // namespace shardrun::ofi
