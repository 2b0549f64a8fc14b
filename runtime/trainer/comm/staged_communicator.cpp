#include "runtime/trainer/comm/staged_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/plan/communication.h"

namespace shardrun::comm {
namespace {

using base::Code;
using base::DeviceLink;
using base::Error;
using Stream = base::DeviceLink::Stream;
using Clock = std::chrono::steady_clock;

enum class Kind {
  kAllGather,
  kReduceScatter,
  kReduceScatterBf16,
  kAllReduceFloat,
  kAllReduceDouble,
  kAllReduceBf16,
  kBroadcast,
  kBarrier
};

bool scatters(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kReduceScatterBf16;
}

template <typename T, typename Byte>
auto elements(std::span<Byte> bytes) {
  return std::span(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
}

struct Operation {
  Kind kind = Kind::kBarrier;
  const std::byte* in = nullptr;  // device memory, as is out
  std::byte* out = nullptr;
  size_t bytes = 0;  // one rank's part in all_gather and reduce_scatter, else the whole buffer
  int root = 0;
  uint64_t ticket = 0;
  // The operation comes after start, and what follows it comes after end.
  std::unique_ptr<DeviceLink::Mark> start, end;
};

// Half of the pinned memory, for the one piece that is in work.
struct Slot {
  std::span<std::byte> part, all;  // one rank's part, and those of all
  // Recorded when it is copied out of the device; when it is copied back.
  std::unique_ptr<DeviceLink::Mark> out, back;
};

class Staged final : public Communicator {
 public:
  Staged(std::unique_ptr<Communicator> host, std::unique_ptr<DeviceLink> link, const StagingOptions& options)
      : link_(std::move(link)),
        host_(std::move(host)),
        piece_bytes_(options.piece_bytes),
        timeout_(options.timeout) {}
  ~Staged() override;

  Result<void> begin();

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    SHARDRUN_CHECK(all.size() == mine.size() * ranks(), "all_gather: sizes");
    return start({.kind = Kind::kAllGather, .in = mine.data(), .out = all.data(), .bytes = mine.size()});
  }
  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return scatter(Kind::kReduceScatter, std::as_bytes(full), std::as_writable_bytes(mine));
  }
  Result<Pending> reduce_scatter(std::span<const Bf16> full, std::span<Bf16> mine) override {
    return scatter(Kind::kReduceScatterBf16, std::as_bytes(full), std::as_writable_bytes(mine));
  }
  Result<Pending> all_reduce(std::span<float> buffer) override {
    return in_place(Kind::kAllReduceFloat, std::as_writable_bytes(buffer), 0);
  }
  Result<Pending> all_reduce(std::span<double> buffer) override {
    return in_place(Kind::kAllReduceDouble, std::as_writable_bytes(buffer), 0);
  }
  Result<Pending> all_reduce(std::span<Bf16> buffer) override {
    return in_place(Kind::kAllReduceBf16, std::as_writable_bytes(buffer), 0);
  }
  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return in_place(Kind::kBroadcast, buffer, root);
  }
  Result<Pending> barrier() override { return in_place(Kind::kBarrier, {}, 0); }
  Result<void> wait(Pending pending) override;
  void abort(const std::string& reason) override { host_->abort(reason); }

 private:
  size_t ranks() const { return static_cast<size_t>(host_->size()); }
  Result<Pending> scatter(Kind kind, std::span<const std::byte> full, std::span<std::byte> mine) {
    SHARDRUN_CHECK(full.size() == mine.size() * ranks(), "reduce_scatter: sizes");
    return start({.kind = kind, .in = full.data(), .out = mine.data(), .bytes = mine.size()});
  }
  Result<Pending> in_place(Kind kind, std::span<std::byte> buffer, int root) {
    return start(
        {.kind = kind, .in = buffer.data(), .out = buffer.data(), .bytes = buffer.size(), .root = root});
  }
  Result<Pending> start(Operation operation);
  Result<Pending> start_alone(const Operation& operation);
  Result<std::unique_ptr<DeviceLink::Mark>> take_mark();

  // The thread's side.
  void run();
  Result<void> carry_out(const Operation& operation);
  Result<void> copy_out(const Operation& operation, Slot& slot, size_t offset);
  Result<void> exchange(const Operation& operation, Slot& slot, size_t bytes);
  Result<void> copy_back(const Operation& operation, Slot& slot, size_t offset);
  Result<void> until_done(const DeviceLink::Mark& mark, uint64_t ticket);
  size_t piece_of(const Operation& operation) const;

  // Destroyed in the reverse order: the link comes last.
  const std::unique_ptr<DeviceLink> link_;
  const std::unique_ptr<Communicator> host_;
  const size_t piece_bytes_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<DeviceLink::PinnedMemory> pinned_;
  std::array<Slot, 2> slots_;
  size_t next_slot_ = 0;      // the thread's
  bool device_came_ = false;  // the thread's: the device has come to the operation in work

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Operation> operations_;                    // under mutex_; those not waited for yet
  std::vector<std::unique_ptr<DeviceLink::Mark>> spare_marks_;  // under mutex_
  uint64_t started_ = 0, completed_ = 0;                        // under mutex_
  std::optional<Error> failure_;                                // under mutex_; the first is final
  bool stopping_ = false;                                       // under mutex_
  std::thread thread_;
};

Result<void> Staged::begin() {
  if (size() == 1) return {};
  auto pinned = link_->allocate_pinned(plan::staging_bytes(size(), static_cast<int64_t>(piece_bytes_)));
  if (!pinned) return std::move(pinned).error().context("memory for staging");
  pinned_ = std::move(*pinned);
  std::span<std::byte> rest = pinned_->bytes();
  for (Slot& slot : slots_) {
    slot.part = rest.first(piece_bytes_);
    slot.all = rest.subspan(piece_bytes_, ranks() * piece_bytes_);
    rest = rest.subspan(slot.part.size() + slot.all.size());
    for (auto* mark : {&slot.out, &slot.back}) {
      ASSIGN_OR_RETURN(auto made, link_->make_mark());
      *mark = std::move(made);
    }
    RETURN_IF_ERROR(link_->record(*slot.back, Stream::kIn));
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

Staged::~Staged() {
  bool in_flight = false;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    in_flight = completed_ < started_ && !failure_;
  }
  changed_.notify_all();
  if (in_flight) host_->abort("a communicator was closed with operations in flight");
  if (thread_.joinable()) thread_.join();
  (void)link_->drain(Stream::kOut);  // copies that are under way still use the pinned memory
  (void)link_->drain(Stream::kIn);
}

Result<Pending> Staged::start(Operation operation) {
  if (size() == 1) return start_alone(operation);
  ASSIGN_OR_RETURN(auto start, take_mark());
  ASSIGN_OR_RETURN(auto end, take_mark());
  operation.start = std::move(start);
  operation.end = std::move(end);
  RETURN_IF_ERROR(link_->record(*operation.start, Stream::kCompute));
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    ticket = operation.ticket = ++started_;
    operations_.emplace(ticket, std::move(operation));
  }
  changed_.notify_all();
  return Pending{ticket};
}

Result<Pending> Staged::start_alone(const Operation& operation) {
  if (operation.bytes > 0 && operation.in != operation.out)
    RETURN_IF_ERROR(link_->copy(Stream::kCompute, operation.out, operation.in, operation.bytes));
  return Pending{++started_};
}

Result<std::unique_ptr<DeviceLink::Mark>> Staged::take_mark() {
  {
    std::lock_guard lock(mutex_);
    if (!spare_marks_.empty()) {
      auto mark = std::move(spare_marks_.back());
      spare_marks_.pop_back();
      return mark;
    }
  }
  return link_->make_mark();
}

Result<void> Staged::wait(Pending pending) {
  if (size() == 1) return {};
  std::unique_lock lock(mutex_);
  SHARDRUN_CHECK(pending.ticket <= started_, "wait: no such ticket");
  changed_.wait(lock, [&] { return failure_ || completed_ >= pending.ticket; });
  if (failure_) return *failure_;
  const auto found = operations_.find(pending.ticket);
  if (found == operations_.end()) return {};  // it was already waited for
  RETURN_IF_ERROR(link_->wait(Stream::kCompute, *found->second.end));
  spare_marks_.push_back(std::move(found->second.start));
  spare_marks_.push_back(std::move(found->second.end));
  operations_.erase(found);
  return {};
}

void Staged::run() {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    changed_.wait(lock, [&] { return stopping_ || completed_ < started_; });
    if (stopping_) return;
    const Operation& operation = operations_.at(completed_ + 1);  // stays until it was waited for
    lock.unlock();
    auto done = carry_out(operation);
    // No copy may touch a buffer after wait() has returned; but wait() does not wait for a device that does not come.
    if (!done) {
      (void)link_->drain(Stream::kIn);
      if (device_came_) (void)link_->drain(Stream::kOut);
    }
    lock.lock();
    if (done) {
      ++completed_;
    } else {
      failure_ = std::move(done).error();
    }
    changed_.notify_all();
  }
}

// All ranks cut an operation in the same way, so the host communicator sees the same operations on all of them.
size_t Staged::piece_of(const Operation& operation) const {
  const bool parts = operation.kind == Kind::kAllGather || scatters(operation.kind);
  return parts ? piece_bytes_ : ranks() * piece_bytes_;
}

Result<void> Staged::carry_out(const Operation& operation) {
  device_came_ = false;
  RETURN_IF_ERROR(link_->wait(Stream::kOut, *operation.start));
  RETURN_IF_ERROR(copy_out(operation, slots_[next_slot_], 0));
  const size_t piece = piece_of(operation);
  for (size_t offset = 0;; offset += piece) {
    Slot& slot = slots_[next_slot_];
    next_slot_ = 1 - next_slot_;
    const bool last = operation.bytes - offset <= piece;
    if (!last) RETURN_IF_ERROR(copy_out(operation, slots_[next_slot_], offset + piece));
    RETURN_IF_ERROR(until_done(*slot.out, operation.ticket));
    device_came_ = true;
    RETURN_IF_ERROR(exchange(operation, slot, std::min(piece, operation.bytes - offset)));
    RETURN_IF_ERROR(copy_back(operation, slot, offset));
    if (last) break;
  }
  return link_->record(*operation.end, Stream::kIn);
}

Result<void> Staged::copy_out(const Operation& operation, Slot& slot, size_t offset) {
  RETURN_IF_ERROR(link_->wait(Stream::kOut, *slot.back));  // what the slot held before is back on the device
  const size_t bytes = std::min(piece_of(operation), operation.bytes - offset);
  const auto copy = [&](std::byte* to, const std::byte* from) -> Result<void> {
    if (bytes == 0) return {};
    return link_->copy(Stream::kOut, to, from, bytes);
  };
  if (operation.kind == Kind::kAllGather) {
    RETURN_IF_ERROR(copy(slot.part.data(), operation.in + offset));
  } else if (scatters(operation.kind)) {
    for (size_t rank = 0; rank < ranks(); ++rank)
      RETURN_IF_ERROR(copy(slot.all.data() + rank * bytes, operation.in + rank * operation.bytes + offset));
  } else if (operation.kind != Kind::kBroadcast || operation.root == rank()) {
    RETURN_IF_ERROR(copy(slot.all.data(), operation.in + offset));
  }
  return link_->record(*slot.out, Stream::kOut);
}

Result<void> Staged::exchange(const Operation& operation, Slot& slot, size_t bytes) {
  const auto part = slot.part.first(std::min(bytes, slot.part.size()));
  const auto begin = [&]() -> Result<Pending> {
    switch (operation.kind) {
      case Kind::kAllGather:
        return host_->all_gather(part, slot.all.first(bytes * ranks()));
      case Kind::kReduceScatter:
        return host_->reduce_scatter(elements<const float>(slot.all.first(bytes * ranks())),
                                     elements<float>(part));
      case Kind::kReduceScatterBf16:
        return host_->reduce_scatter(elements<const Bf16>(slot.all.first(bytes * ranks())),
                                     elements<Bf16>(part));
      case Kind::kAllReduceFloat:
        return host_->all_reduce(elements<float>(slot.all.first(bytes)));
      case Kind::kAllReduceDouble:
        return host_->all_reduce(elements<double>(slot.all.first(bytes)));
      case Kind::kAllReduceBf16:
        return host_->all_reduce(elements<Bf16>(slot.all.first(bytes)));
      case Kind::kBroadcast:
        return host_->broadcast(slot.all.first(bytes), operation.root);
      case Kind::kBarrier:
        break;
    }
    return host_->barrier();
  };
  ASSIGN_OR_RETURN(auto pending, begin());
  return host_->wait(pending);
}

Result<void> Staged::copy_back(const Operation& operation, Slot& slot, size_t offset) {
  const size_t bytes = std::min(piece_of(operation), operation.bytes - offset);
  const auto copy = [&](std::byte* to, const std::byte* from) -> Result<void> {
    if (bytes == 0) return {};
    return link_->copy(Stream::kIn, to, from, bytes);
  };
  if (operation.kind == Kind::kAllGather) {
    for (size_t rank = 0; rank < ranks(); ++rank)
      RETURN_IF_ERROR(copy(operation.out + rank * operation.bytes + offset, slot.all.data() + rank * bytes));
  } else if (scatters(operation.kind)) {
    RETURN_IF_ERROR(copy(operation.out + offset, slot.part.data()));
  } else if (operation.kind != Kind::kBroadcast || operation.root != rank()) {
    RETURN_IF_ERROR(copy(operation.out + offset, slot.all.data()));
  }
  return link_->record(*slot.back, Stream::kIn);
}

// Polls now and then instead of sleeping in the driver, which knows no time limit.
Result<void> Staged::until_done(const DeviceLink::Mark& mark, uint64_t ticket) {
  const auto deadline = Clock::now() + timeout_;
  auto nap = std::chrono::microseconds(5);
  for (;;) {
    ASSIGN_OR_RETURN(auto done, link_->is_done(mark));
    if (done) return {};
    if (Clock::now() >= deadline) {
      return Error(Code::kTimeout, fmt::format("operation #{}: the device has not come to it within {} ms",
                                               ticket, timeout_.count()));
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, nap, [&] { return stopping_; });
      if (stopping_) return Error(Code::kCancelled, "the communicator was closed");
    }
    nap = std::min(nap * 2, std::chrono::microseconds(200));
  }
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_staged(std::unique_ptr<Communicator> host,
                                                  std::unique_ptr<DeviceLink> link,
                                                  const StagingOptions& options) {
  SHARDRUN_CHECK(options.piece_bytes > 0 && options.piece_bytes % 8 == 0, "piece_bytes");
  auto staged = std::make_unique<Staged>(std::move(host), std::move(link), options);
  RETURN_IF_ERROR(staged->begin());
  return Result<std::unique_ptr<Communicator>>(std::move(staged));
}

}  // namespace shardrun::comm
