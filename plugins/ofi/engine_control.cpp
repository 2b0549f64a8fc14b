// Control messages of the engine, small ones between the engines' threads: questions and answers by which a rank whose
// time is up can name those that have not even started the operation.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <span>

#include "plugins/ofi/engine.h"

namespace shardrun::ofi {
namespace {

constexpr int kControlReceives = 16;  // posted per endpoint

}  // namespace

// The tag is the same for all senders, who name themselves in the message: receives never ignore tag bits (see
// fabric.h).
void Engine::post_control_receives() {
  control_tag_ = make_tag({*key_, kControlChannel, 0}, /*kind=*/0, /*step=*/0, /*sender_global_rank=*/0);
  for (uint32_t endpoint = 0; endpoint < endpoints_.size(); ++endpoint) {
    for (int i = 0; i < kControlReceives; ++i) {
      ControlSlot& slot = control_receives_.emplace_back();
      slot.endpoint = endpoint;
    }
  }
  // The first message to a peer makes the connection: make those of the first barrier all at once, not round by
  // round.
  for (uint32_t distance = 1; distance < peers_.size(); distance *= 2) {
    const auto peer = static_cast<uint32_t>((global_rank_ + distance) % peers_.size());
    if (!is_near(peer)) send_control(peer, {.kind = ControlKind::kGreeting});
  }
  post_waiting_control();
}

void Engine::ask_question() {
  question_->asked = true;
  const auto channel = channels_.find(question_->channel);
  if (channel == channels_.end()) return;
  for (const uint32_t rank : channel->second->group.global_ranks) {
    if (rank == global_rank_) continue;
    if (is_near(rank)) {
      question_->answers[rank] = memory_->posted(near_[rank], question_->channel);
      continue;
    }
    send_control(rank,
                 {.kind = ControlKind::kHowFar, .channel = question_->channel, .ticket = question_->ticket});
  }
  for (const auto& active : active_) {
    if (active->channel == channel->second.get() && active->operation->ticket == question_->ticket) {
      question_->awaited = active->operation->awaited();
    }
  }
}

void Engine::send_control(uint32_t global_rank, const ControlMessage& message) {
  ControlSlot& slot = control_sends_.emplace_back();
  slot.endpoint = routes_[global_rank].send;
  slot.request.is_send = true;
  slot.request.global_rank = global_rank;
  slot.message = message;
  slot.message.global_rank = global_rank_;
  control_waits_ = true;
}

// Posts what is not posted yet. Returns true if it posted anything.
bool Engine::post_waiting_control() {
  if (!control_waits_) return false;
  bool moved = false;
  int error = 0;
  control_waits_ = false;
  for (ControlSlot& slot : control_receives_) {
    if (slot.posted) continue;
    slot.posted =
        endpoints_[slot.endpoint]->receive(&slot.message, sizeof(slot.message), control_tag_,
                                           /*from_peer=*/false, &slot.request, &error) == Post::kAccepted;
    control_waits_ |= !slot.posted;
    moved |= slot.posted;
  }
  for (ControlSlot& slot : control_sends_) {
    if (slot.posted) continue;
    const Post post = endpoints_[slot.endpoint]->send(&slot.message, sizeof(slot.message), control_tag_,
                                                      &slot.request, &error);
    slot.posted = post != Post::kTryAgain;  // a message that cannot be sent stays unanswered
    backlog_ |= !slot.posted;
    control_waits_ |= !slot.posted;
    moved |= slot.posted;
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
  control_waits_ = true;
  if (completion.error != 0 || completion.bytes > sizeof(slot->message)) return;
  const auto read =
      read_control(std::as_bytes(std::span(&slot->message, 1)).first(completion.bytes), peers_.size());
  if (!read || is_near(read->global_rank)) return;
  const ControlMessage& message = *read;
  std::lock_guard lock(mutex_);
  if (message.kind == ControlKind::kHowFar) {
    const auto channel = channels_.find(message.channel);
    send_control(message.global_rank, {.kind = ControlKind::kThisFar,
                                       .channel = message.channel,
                                       .ticket = channel == channels_.end() ? 0 : channel->second->posted});
  } else if (message.kind == ControlKind::kThisFar && question_ && question_->channel == message.channel) {
    question_->answers[message.global_rank] = message.ticket;
    changed_.notify_all();
  }
}

}  // namespace shardrun::ofi
