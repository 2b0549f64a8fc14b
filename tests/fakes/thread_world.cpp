#include "tests/fakes/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "plugins/common/collective.h"
#include "tests/support/bf16_number.h"
#include "tests/support/tree_sum.h"

namespace shardrun::fakes {
namespace {

using base::Code;
using base::Error;
using base::Result;
using comm::Pending;
using common::Kind;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kReduceScatterBf16:
      return "reduce_scatter (bf16)";
    case Kind::kAllReduceFloat:
      return "all_reduce (fp32)";
    case Kind::kAllReduceDouble:
      return "all_reduce (fp64)";
    case Kind::kAllReduceBf16:
      return "all_reduce (bf16)";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

// One rank's part in one operation.
struct Post {
  bool present = false;
  Kind kind = Kind::kBarrier;
  size_t bytes = 0;  // per rank for all_gather and reduce_scatter, else of the whole buffer
  int root = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<int64_t> send_bytes{}, receive_bytes{};  // of all_to_all, by rank

  std::string describe() const {
    return kind == Kind::kBroadcast ? fmt::format("broadcast of {} bytes from {}", bytes, root)
                                    : fmt::format("{} of {} bytes", kind_name(kind), bytes);
  }
};

struct Operation {
  std::vector<Post> posts;
  int present = 0;
};

template <typename T>
void sum_slice(const std::vector<Post>& posts, size_t offset_bytes, size_t count, T* sum) {
  for (size_t i = 0; i < count; ++i) {
    sum[i] = tests::tree_sum(static_cast<int>(posts.size()), [&](int rank) {
      return reinterpret_cast<const T*>(posts[static_cast<size_t>(rank)].in + offset_bytes)[i];
    });
  }
}

template <typename T>
void all_reduce_posts(std::vector<Post>& posts) {
  if (posts[0].bytes == 0) return;
  std::vector<T> sum(posts[0].bytes / sizeof(T));
  sum_slice<T>(posts, 0, sum.size(), sum.data());
  for (Post& post : posts) std::memcpy(post.out, sum.data(), post.bytes);
}

template <typename T>
void reduce_scatter_posts(std::vector<Post>& posts) {
  const size_t bytes = posts[0].bytes;
  for (size_t rank = 0; rank < posts.size(); ++rank)
    sum_slice<T>(posts, rank * bytes, bytes / sizeof(T), reinterpret_cast<T*>(posts[rank].out));
}

// Returns what two ranks say differently of a part that goes from one to the other; "" where they agree.
std::string exchange_parts(std::vector<Post>& posts) {
  std::vector<size_t> received(posts.size());
  for (size_t from = 0; from < posts.size(); ++from) {
    size_t sent = 0;
    for (size_t to = 0; to < posts.size(); ++to) {
      const int64_t bytes = posts[from].send_bytes[to];
      if (bytes != posts[to].receive_bytes[from])
        return fmt::format("rank {} sends {} bytes to rank {}, which expects {}", from, bytes, to,
                           posts[to].receive_bytes[from]);
      if (bytes > 0)
        std::memcpy(posts[to].out + received[to], posts[from].in + sent, static_cast<size_t>(bytes));
      sent += static_cast<size_t>(bytes);
      received[to] += static_cast<size_t>(bytes);
    }
  }
  return "";
}

void execute(std::vector<Post>& posts) {
  const size_t bytes = posts[0].bytes;
  switch (posts[0].kind) {
    case Kind::kAllGather:
      for (const Post& to : posts) {
        for (size_t from = 0; from < posts.size(); ++from) {
          if (bytes > 0) std::memmove(to.out + from * bytes, posts[from].in, bytes);
        }
      }
      break;
    case Kind::kReduceScatter:
      reduce_scatter_posts<float>(posts);
      break;
    case Kind::kReduceScatterBf16:
      reduce_scatter_posts<tests::Bf16Number>(posts);
      break;
    case Kind::kAllReduceBf16:
      all_reduce_posts<tests::Bf16Number>(posts);
      break;
    case Kind::kAllReduceFloat:
      all_reduce_posts<float>(posts);
      break;
    case Kind::kAllReduceDouble:
      all_reduce_posts<double>(posts);
      break;
    case Kind::kBroadcast:
      for (Post& post : posts) {
        if (bytes > 0 && post.out != posts[posts[0].root].out) {
          std::memcpy(post.out, posts[posts[0].root].out, bytes);
        }
      }
      break;
    case Kind::kBarrier:
    case Kind::kAllToAll:  // exchange_parts()
      break;
  }
}

}  // namespace

struct ThreadWorld::Shared {
  struct Channel {
    std::map<uint64_t, Operation> in_flight;
  };

  int size = 0;
  ThreadWorldOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Channel> channels;
  std::vector<uint64_t> silent_from;  // by rank; 0 = never
  std::optional<int> killed;
  std::optional<Error> failure;  // the first broken rule; it ends every wait

  // Adds one rank's part; the last to arrive does the work for all. The mutex is held by the caller.
  void add(Channel& channel, uint64_t ticket, int rank, const Post& post) {
    Operation& operation = channel.in_flight[ticket];
    if (operation.posts.empty()) operation.posts.resize(static_cast<size_t>(size));
    if (silent_from[rank] != 0 && ticket >= silent_from[rank]) return;
    for (int other = 0; other < size; ++other) {
      const Post& theirs = operation.posts[other];
      if (!theirs.present || failure) continue;
      if (theirs.kind != post.kind || theirs.bytes != post.bytes || theirs.root != post.root) {
        failure = Error(Code::kCorrupt, fmt::format("operation #{}: rank {} posted {}, rank {} posted {}",
                                                    ticket, other, theirs.describe(), rank, post.describe()));
      }
    }
    operation.posts[rank] = post;
    operation.posts[rank].present = true;
    if (++operation.present < size || failure || killed) return;
    if (post.kind != Kind::kAllToAll) {
      execute(operation.posts);
    } else if (const std::string what = exchange_parts(operation.posts); !what.empty()) {
      failure = Error(Code::kCorrupt, fmt::format("operation #{}: {}", ticket, what));
      return;
    }
    channel.in_flight.erase(ticket);
  }

  Error timeout_error(const Channel& channel, uint64_t ticket) const {
    std::string missing;
    for (int rank = 0; rank < size; ++rank) {
      if (channel.in_flight.at(ticket).posts[rank].present) continue;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
    return Error(Code::kTimeout, fmt::format("operation #{}: no answer from rank {} within {} ms", ticket,
                                             missing, options.timeout.count()));
  }
};

class ThreadCommunicator final : public comm::Communicator {
 public:
  ThreadCommunicator(ThreadWorld::Shared& shared, int rank, int channel)
      : shared_(shared), channel_(shared.channels[static_cast<size_t>(channel)]), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_.size; }

  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * size()) {
      return fail(fmt::format("all_gather: {} bytes from each of {} ranks do not fill {}", mine.size(),
                              size(), all.size()));
    }
    return post({.kind = Kind::kAllGather, .bytes = mine.size(), .in = mine.data(), .out = all.data()});
  }

  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return scatter(Kind::kReduceScatter, full, mine);
  }
  Result<Pending> reduce_scatter(std::span<const comm::Bf16> full, std::span<comm::Bf16> mine) override {
    return scatter(Kind::kReduceScatterBf16, full, mine);
  }

  Result<Pending> all_reduce(std::span<float> buffer) override {
    return in_place(Kind::kAllReduceFloat, std::as_writable_bytes(buffer), /*root=*/0);
  }
  Result<Pending> all_reduce(std::span<double> buffer) override {
    return in_place(Kind::kAllReduceDouble, std::as_writable_bytes(buffer), /*root=*/0);
  }
  Result<Pending> all_reduce(std::span<comm::Bf16> buffer) override {
    return in_place(Kind::kAllReduceBf16, std::as_writable_bytes(buffer), /*root=*/0);
  }
  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    if (root < 0 || root >= size()) return fail(fmt::format("broadcast: no rank {} among {}", root, size()));
    return in_place(Kind::kBroadcast, buffer, root);
  }
  Result<Pending> barrier() override { return in_place(Kind::kBarrier, {}, /*root=*/0); }
  Result<Pending> all_to_all(const Parts& parts) override {
    return post({.kind = Kind::kAllToAll,
                 .in = parts.send.data(),
                 .out = parts.receive.data(),
                 .send_bytes = {parts.send_bytes.begin(), parts.send_bytes.end()},
                 .receive_bytes = {parts.receive_bytes.begin(), parts.receive_bytes.end()}});
  }

  Result<void> wait(Pending pending) override {
    std::unique_lock lock(shared_.mutex);
    const auto over = [&] {
      return shared_.failure || shared_.killed || channel_.in_flight.count(pending.ticket) == 0;
    };
    const bool in_time = shared_.changed.wait_for(lock, shared_.options.timeout, over);
    if (shared_.failure) return *shared_.failure;
    if (channel_.in_flight.count(pending.ticket) == 0) return {};
    if (!in_time) return shared_.timeout_error(channel_, pending.ticket);
    return Error(Code::kPeerLost,
                 fmt::format("operation #{}: lost rank {}", pending.ticket, *shared_.killed));
  }
  void abort(const std::string& reason) override {
    std::lock_guard lock(shared_.mutex);
    if (!shared_.failure)
      shared_.failure = Error(Code::kCancelled, fmt::format("rank {}: {}", rank_, reason));
    shared_.changed.notify_all();
  }

 private:
  template <typename Number>
  Result<Pending> scatter(Kind kind, std::span<const Number> full, std::span<Number> mine) {
    if (full.size() != mine.size() * size()) {
      return fail(
          fmt::format("reduce_scatter: {} elements are not {} times {}", full.size(), size(), mine.size()));
    }
    if (!mine.empty() && mine.data() < full.data() + full.size() && full.data() < mine.data() + mine.size()) {
      return fail("reduce_scatter: `mine` overlaps `full`");
    }
    return post({.kind = kind,
                 .bytes = mine.size_bytes(),
                 .in = std::as_bytes(full).data(),
                 .out = std::as_writable_bytes(mine).data()});
  }

  Result<Pending> in_place(Kind kind, std::span<std::byte> buffer, int root) {
    return post(
        {.kind = kind, .bytes = buffer.size(), .root = root, .in = buffer.data(), .out = buffer.data()});
  }

  Result<Pending> post(const Post& mine) {
    std::lock_guard lock(shared_.mutex);
    shared_.add(channel_, ++last_ticket_, rank_, mine);
    shared_.changed.notify_all();
    return Pending{last_ticket_};
  }

  Error fail(std::string message) {
    std::lock_guard lock(shared_.mutex);
    if (!shared_.failure) shared_.failure = Error(Code::kCorrupt, fmt::format("rank {}: {}", rank_, message));
    shared_.changed.notify_all();
    return *shared_.failure;
  }

  ThreadWorld::Shared& shared_;
  ThreadWorld::Shared::Channel& channel_;
  const int rank_;
  uint64_t last_ticket_ = 0;
};

ThreadWorld::ThreadWorld(int size, ThreadWorldOptions options) : shared_(std::make_unique<Shared>()) {
  SHARDRUN_CHECK(size > 0 && options.channels > 0);
  shared_->size = size;
  shared_->options = options;
  shared_->channels.resize(static_cast<size_t>(options.channels));
  shared_->silent_from.resize(static_cast<size_t>(size));
}

ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<comm::Communicator> ThreadWorld::communicator(int rank, int channel) {
  SHARDRUN_CHECK(rank >= 0 && rank < shared_->size && channel >= 0 && channel < shared_->options.channels);
  return std::make_unique<ThreadCommunicator>(*shared_, rank, channel);
}

void ThreadWorld::silence(int rank, uint64_t from_ticket) {
  std::lock_guard lock(shared_->mutex);
  shared_->silent_from[static_cast<size_t>(rank)] = from_ticket;
}

void ThreadWorld::kill(int rank) {
  std::lock_guard lock(shared_->mutex);
  shared_->killed = rank;
  shared_->changed.notify_all();
}

void ThreadWorld::run(
    const std::function<void(int rank, std::span<comm::Communicator* const> channels)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shared_->size; ++rank) {
    threads.emplace_back([this, rank, &body] {
      std::vector<std::unique_ptr<comm::Communicator>> owned;
      std::vector<comm::Communicator*> channels;
      for (int channel = 0; channel < shared_->options.channels; ++channel) {
        owned.push_back(communicator(rank, channel));
        channels.push_back(owned.back().get());
      }
      body(rank, channels);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shardrun::fakes
