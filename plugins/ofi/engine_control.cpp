// Control messages of the engine, small ones between the engines' threads: what receivers have room for, and questions and
// answers by which a rank whose time is up can name those that have not even started the operation.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

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
  // Those of the first barrier are made all at once, not round by round.
  for (uint32_t distance = 1; distance < peers_.size(); distance *= 2) {
    greet(static_cast<uint32_t>((global_rank_ + distance) % peers_.size()));
  }
  post_waiting_control();
}

// Makes the connection over which this rank sends to another one: the first message does.
void Engine::greet(uint32_t global_rank) {
  if (is_near(global_rank) || !greeted_.insert(global_rank).second) return;
  send_control(global_rank, routes_[global_rank].send, {.kind = ControlKind::kGreeting});
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
    send_control(rank, routes_[rank].send,
                 {.kind = ControlKind::kHowFar, .channel = question_->channel, .ticket = question_->ticket});
  }
  for (const auto& active : active_) {
    if (active->channel == channel->second.get() && active->operation->ticket == question_->ticket) {
      question_->awaited = active->operation->awaited();
    }
  }
}

void Engine::send_control(uint32_t global_rank, uint32_t endpoint, const ControlMessage& message) {
  ControlSlot& slot = control_sends_.emplace_back();
  slot.endpoint = endpoint;
  slot.request.is_send = true;
  slot.request.global_rank = global_rank;
  slot.message = message;
  slot.message.global_rank = global_rank_;
  control_waits_ = true;
}

// Tells the sender of a flow how many segments this rank waits for. It is told over the connection on which that comes, against
// whose direction nothing stands in a queue.
void Engine::tell_room(const ActiveOperation& active, Flow& flow) {
  flow.room = flow.posted;
  send_control(flow.global_rank, routes_[flow.global_rank].receive,
               {.kind = ControlKind::kRoom,
                .channel = active.channel->id,
                .step = flow.step,
                .ticket = active.operation->ticket,
                .total = flow.total_bytes,
                .segments = flow.room});
}

// What is said of an operation that has not begun here is kept until then. So is more than an operation needs: it is of another
// one, of a channel that was closed and opened again.
void Engine::hear_room(const ControlMessage& message) {
  for (const auto& active : active_) {
    if (active->channel->id != message.channel || active->operation->ticket != message.ticket) continue;
    if (give_room(*active, message)) return;
  }
  early_room_[{message.channel, message.ticket}].push_back(message);
}

void Engine::use_early_room(ActiveOperation& active) {
  const auto early = early_room_.find({active.channel->id, active.operation->ticket});
  if (early == early_room_.end()) return;
  for (const ControlMessage& message : std::exchange(early->second, {})) {
    if (!give_room(active, message)) early->second.push_back(message);
  }
  if (early->second.empty()) early_room_.erase(early);
}

// Returns whether the operation had use for it.
bool Engine::give_room(ActiveOperation& active, const ControlMessage& message) {
  for (Flow& flow : active.operation->flows()) {
    if (!flow.is_send || flow.global_rank != message.global_rank || flow.step != message.step) continue;
    if (flow.room == flow.segments()) return false;
    if (flow.total_bytes != message.total) {
      fail({SHARDRUN_COMM_MISMATCH,
            fmt::format("{} #{}: {} waits for {} bytes instead of {}: ranks call different operations",
                        active.operation->name, message.ticket, rank_text(message.global_rank), message.total,
                        flow.total_bytes),
            {message.global_rank}},
           global_rank_);
    }
    flow.room = static_cast<uint32_t>(std::min<uint64_t>(message.segments, flow.segments()));
    active.stale = true;
    return true;
  }
  return false;
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
  if (message.kind == ControlKind::kRoom) return hear_room(message);
  std::lock_guard lock(mutex_);
  if (message.kind == ControlKind::kHowFar) {
    const auto channel = channels_.find(message.channel);
    send_control(message.global_rank, routes_[message.global_rank].send,
                 {.kind = ControlKind::kThisFar,
                  .channel = message.channel,
                  .ticket = channel == channels_.end() ? 0 : channel->second->posted});
  } else if (message.kind == ControlKind::kThisFar && question_ && question_->channel == message.channel) {
    question_->answers[message.global_rank] = message.ticket;
    changed_.notify_all();
  }
}

}  // namespace shardrun::ofi
