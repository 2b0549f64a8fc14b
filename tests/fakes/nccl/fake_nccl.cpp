// A stand-in for libnccl.so.2: communicators among threads of one process, whose operations are put on the caller's
// stream and move real bytes. It is as unkind as the interface allows: no call is carried out before it has been polled
// for asynchronous errors several times, sums run in descending rank order, and ranks that disagree wait for ever.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugins/nccl/nccl_types.h"
#include "tests/fakes/nccl/script.h"
#include "tests/support/bf16_number.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

using namespace shardrun::nccl;

extern "C" CuResult cuLaunchHostFunc(CuStream* stream, void (*work)(void*), void* argument);
extern "C" {
shardrun::fakes::NcclScript fake_nccl_script;
}

namespace {

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

struct Post {
  bool present = false;
  Kind kind = Kind::kAllGather;
  const char* in = nullptr;
  char* out = nullptr;
  size_t count = 0;
  int type = 0, root = 0;
};

struct Gathering {
  std::vector<Post> posts;
  bool done = false;
};

struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  size_t ranks = 0, joined = 0;
  std::map<uint64_t, Gathering> gatherings;
};

struct Member {
  std::shared_ptr<Clique> clique;
  size_t rank = 0;
  bool aborted = false;  // under the clique's mutex
};

std::mutex cliques_mutex;
std::map<std::string, std::shared_ptr<Clique>> cliques;
int next_id = 0;

size_t size_of(int type) {
  return type == kFloat64 ? 8 : type == kFloat32 ? 4 : type == kBfloat16 ? 2 : 1;
}

template <typename T>
void add(const std::vector<Post>& posts, size_t offset, size_t count, std::vector<char>& sum) {
  sum.resize(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    T total{};
    for (size_t rank = posts.size(); rank-- > 0;)
      total = total + reinterpret_cast<const T*>(posts[rank].in)[offset + i];
    std::memcpy(sum.data() + i * sizeof(T), &total, sizeof(T));
  }
}

void carry_out(std::vector<Post>& posts) {
  const Post first = posts[0];
  const size_t bytes = first.count * size_of(first.type);
  const auto copy = [](char* to, const char* from, size_t size) {
    if (size > 0) std::memmove(to, from, size);
  };
  const auto sum_of = [&](size_t offset) {
    std::vector<char> sum;
    if (first.type == kFloat64) {
      add<double>(posts, offset, first.count, sum);
    } else if (first.type == kBfloat16) {
      add<shardrun::tests::Bf16Number>(posts, offset, first.count, sum);
    } else {
      add<float>(posts, offset, first.count, sum);
    }
    return sum;
  };
  std::vector<std::vector<char>> results(posts.size());
  if (first.kind == Kind::kAllGather || first.kind == Kind::kBroadcast) {
    for (size_t rank = 0; rank < posts.size(); ++rank)
      results[rank].assign(posts[rank].in, posts[rank].in + bytes);
  } else {
    for (size_t rank = 0; rank < posts.size(); ++rank)
      results[rank] = sum_of(first.kind == Kind::kReduceScatter ? rank * first.count : 0);
  }
  for (size_t to = 0; to < posts.size(); ++to) {
    if (first.kind == Kind::kAllGather) {
      for (size_t from = 0; from < posts.size(); ++from)
        copy(posts[to].out + from * bytes, results[from].data(), bytes);
    } else {
      const size_t from = first.kind == Kind::kBroadcast ? static_cast<size_t>(first.root) : to;
      copy(posts[to].out, results[from].data(), bytes);
    }
  }
}

// Members whose operations wait for others, of all communicators.
std::mutex waiting_mutex;
std::condition_variable waiting_changed;
std::vector<const Member*> waiting;

// Runs on the stream's thread.
void take_part(Member& member, uint64_t number, const Post& post) {
  Clique& clique = *member.clique;
  std::unique_lock lock(clique.mutex);
  if (member.aborted) return;
  Gathering& gathering = clique.gatherings[number];
  gathering.posts.resize(clique.ranks);
  gathering.posts[member.rank] = post;
  const bool all = std::all_of(gathering.posts.begin(), gathering.posts.end(), [&](const Post& other) {
    return other.present && other.kind == post.kind && other.count == post.count && other.type == post.type;
  });
  if (all) {
    carry_out(gathering.posts);
    gathering.done = true;
    clique.changed.notify_all();
  }
  {
    const std::lock_guard guard(waiting_mutex);
    waiting.push_back(&member);
  }
  clique.changed.wait(lock, [&] { return gathering.done || member.aborted; });
  const std::lock_guard guard(waiting_mutex);
  waiting.erase(std::find(waiting.begin(), waiting.end(), &member));
  waiting_changed.notify_all();
}

#ifndef WITHOUT_ABORT
// Waits as the real library's cudaFree may: for all that runs on the GPU, here of the members of the same number.
void wait_for_the_gpu(const Member& member) {
  std::unique_lock lock(waiting_mutex);
  waiting_changed.wait_for(lock, std::chrono::seconds(4), [&] {
    return std::none_of(waiting.begin(), waiting.end(),
                        [&](const Member* other) { return other->rank == member.rank; });
  });
}
#endif

}  // namespace

namespace shardrun::nccl {
struct Comm {
  std::shared_ptr<Member> member;
  std::mutex mutex;
  int polls_left = 0;            // under mutex, as is all that follows
  std::function<void()> launch;  // what the newest call does when it is carried out
  uint64_t operations = 0;
  std::string last_error;
  bool connected = false, finalizing = false;
};
}  // namespace shardrun::nccl

namespace {

struct HostWork {
  std::shared_ptr<Member> member;
  uint64_t number;
  Post post;
};

Result put_on(Comm* comm, CuStream* stream, Post post) {
  const std::lock_guard guard(comm->mutex);
  if (!comm->connected || comm->launch) {
    comm->last_error = "fake: called while another call is in progress";
    return kInvalidUsage;
  }
  post.present = true;
  const uint64_t number = ++comm->operations;
  comm->polls_left = fake_nccl_script.polls;
  if (fake_nccl_script.stalling_rank == static_cast<int>(comm->member->rank)) comm->polls_left = 1 << 30;
  comm->launch = [=, member = comm->member] {
    (void)cuLaunchHostFunc(
        stream,
        [](void* argument) {
          const std::unique_ptr<HostWork> work(static_cast<HostWork*>(argument));
          take_part(*work->member, work->number, work->post);
        },
        new HostWork{member, number, post});
  };
  return kInProgress;
}

const char* bytes_of(const void* memory) {
  return static_cast<const char*>(memory);
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return kSuccess;
}
Result ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard guard(cliques_mutex);
  *id = {};
  std::memcpy(id->internal, "fake", 4);
  ++next_id;
  std::memcpy(id->internal + 4, &next_id, sizeof(next_id));
  return kSuccess;
}
Result ncclCommInitRankConfig(Comm** out, int ranks, UniqueId id, int rank, Config* config) {
  if (config->size != sizeof(Config) || config->magic != 0xcafebeef || config->version != 21700 ||
      config->blocking != 0)
    return kInvalidArgument;
  if (config->net_name != nullptr) ++fake_nccl_script.unusual_configs;
  if (config->max_ctas == 1) ++fake_nccl_script.narrow_configs;
  auto comm = std::make_unique<Comm>();
  comm->member = std::make_shared<Member>();
  {
    const std::lock_guard guard(cliques_mutex);
    auto& clique = cliques[std::string(id.internal, sizeof(id.internal))];
    if (!clique) clique = std::make_shared<Clique>();
    comm->member->clique = clique;
  }
  comm->member->rank = static_cast<size_t>(rank);
  {
    Clique& clique = *comm->member->clique;
    const std::lock_guard guard(clique.mutex);
    clique.ranks = static_cast<size_t>(ranks);
    if (++clique.joined > clique.ranks) return kInvalidUsage;  // an id that has been used already
  }
  *out = comm.release();
  return kInProgress;
}
Result ncclCommGetAsyncError(Comm* comm, Result* state) {
  const std::lock_guard guard(comm->mutex);
  const int rank = static_cast<int>(comm->member->rank);
  *state = kSuccess;
  if (!comm->connected) {
    const std::lock_guard clique_guard(comm->member->clique->mutex);
    if (fake_nccl_script.init_error_rank == rank) {
      comm->last_error = "fake: no socket interface found";
      *state = kSystemError;
    } else if (comm->member->clique->joined < comm->member->clique->ranks) {
      *state = kInProgress;
    } else {
      comm->connected = true;
    }
  } else if (fake_nccl_script.remote_error_rank == rank && comm->operations >= 3) {
    comm->last_error = "fake: connection closed by remote peer";
    *state = kRemoteError;
  } else if (comm->launch) {
    if (--comm->polls_left > 0) {
      *state = kInProgress;
    } else {
      std::exchange(comm->launch, nullptr)();
    }
  }
  return kSuccess;
}
Result ncclCommFinalize(Comm* comm) {
  const std::lock_guard guard(comm->mutex);
  comm->finalizing = true;
  return kInProgress;
}
Result ncclCommDestroy(Comm* comm) {
  ++fake_nccl_script.destroys;
  delete comm;
  return kSuccess;
}
#ifndef WITHOUT_ABORT
Result ncclCommAbort(Comm* comm) {
  ++fake_nccl_script.aborts;
  {
    const std::lock_guard guard(comm->member->clique->mutex);
    comm->member->aborted = true;
    comm->member->clique->changed.notify_all();
  }
  if (fake_nccl_script.aborts_wait) wait_for_the_gpu(*comm->member);
  delete comm;
  return kSuccess;
}
#endif
const char* ncclGetErrorString(Result result) {
  return result == kSystemError   ? "unhandled system error (run with NCCL_DEBUG=INFO for details)"
         : result == kRemoteError ? "remote process exited or there was a network error"
                                  : "invalid usage";
}
const char* ncclGetLastError(Comm* comm) {
  return comm == nullptr ? "" : comm->last_error.c_str();
}
Result ncclAllGather(const void* in, void* out, size_t count, int type, Comm* comm, CuStream* stream) {
  return put_on(comm, stream,
                {.kind = Kind::kAllGather,
                 .in = bytes_of(in),
                 .out = static_cast<char*>(out),
                 .count = count,
                 .type = type});
}
Result ncclReduceScatter(const void* in, void* out, size_t count, int type, int, Comm* comm,
                         CuStream* stream) {
  return put_on(comm, stream,
                {.kind = Kind::kReduceScatter,
                 .in = bytes_of(in),
                 .out = static_cast<char*>(out),
                 .count = count,
                 .type = type});
}
Result ncclAllReduce(const void* in, void* out, size_t count, int type, int, Comm* comm, CuStream* stream) {
  return put_on(comm, stream,
                {.kind = Kind::kAllReduce,
                 .in = bytes_of(in),
                 .out = static_cast<char*>(out),
                 .count = count,
                 .type = type});
}
Result ncclBroadcast(const void* in, void* out, size_t count, int type, int root, Comm* comm,
                     CuStream* stream) {
  return put_on(comm, stream,
                {.kind = Kind::kBroadcast,
                 .in = bytes_of(in),
                 .out = static_cast<char*>(out),
                 .count = count,
                 .type = type,
                 .root = root});
}

}  // extern "C"
