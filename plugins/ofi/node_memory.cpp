#include "plugins/ofi/node_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>

#include "plugins/ofi/copy.h"

namespace shardrun::ofi {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeadBytes = 64;  // before a chunk's bytes, which stay aligned to a cache line
static_assert(sizeof(ChunkHead) <= kHeadBytes);

struct alignas(64) Counter {
  std::atomic<uint64_t> value{0};
};

struct NodeRing {
  Counter head, tail;                               // chunks written and, where one reader has it, released
  alignas(64) std::atomic<uint32_t> wants_room{0};  // its writer waits for a release
};

uint64_t to_pages(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

constexpr const char* kFolder = "/dev/shm";
constexpr std::string_view kPrefix = "shardrun-";

std::string file_name(uint64_t cookie) {
  return fmt::format("/{}{:016x}", kPrefix, cookie);
}

// Reserves the pages, so that a full /dev/shm is an error here and no SIGBUS later.
Status reserve(int descriptor, uint64_t offset, uint64_t bytes) {
  int error = 0;
  do {
    error = posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return {};
  return {SHARDRUN_COMM_IO,
          fmt::format("/dev/shm has no {} bytes for ranks of one node to pass bytes through: {}; see `df -h "
                      "{}`, and give it more (a container: --shm-size)",
                      bytes, std::strerror(error), kFolder)};
}

}  // namespace

struct NodeMemory::Board {
  Counter notices;
  alignas(64) std::atomic<uint32_t> sleeping{0};
  // Where its rank keeps its cookie, for others to try whether they can read it; set before pid.
  std::atomic<const uint64_t*> cookie{nullptr};
  std::atomic<pid_t> pid{0};
  std::atomic<uint32_t> is_withdrawn{0};
  std::array<std::atomic<uint64_t>, kChannels> posted{};
};

struct NodeRegion::Ring : NodeRing {};

enum class Reads : uint32_t { kUnknown, kYes, kNo };

struct NodeRegion::Header {
  std::atomic<uint64_t> group{0};  // whose region it is; 0: nobody's yet
  std::atomic<uint32_t> members{0}, mine{0};
  std::atomic<Reads> reads{Reads::kUnknown};  // whether its rank can read in the memory of the group's others
};

uint64_t NodeGeometry::chunk_to_one() const {
  constexpr uint64_t kAll = 512 << 10, kLeast = 4 << 10;
  const uint64_t largest = ranks <= 4 ? 64 << 10 : 32 << 10;
  return std::max(kLeast, std::min(largest, kAll / ranks / kPage * kPage));
}

uint64_t NodeGeometry::slots_to_one() const {
  constexpr uint64_t kToOneReader = 512 << 10, kLeast = 4;  // of two regions that is a MiB
  return std::max(kLeast, kToOneReader / (std::max(1u, ranks - 1) * chunk_to_one()));
}

uint64_t NodeGeometry::counters_bytes() const {
  return to_pages(64 + (ranks + 1) * sizeof(NodeRing) + ranks * sizeof(Counter));
}

uint64_t NodeGeometry::ring_to_all_bytes() const {
  return to_pages(slots_to_all() * (kHeadBytes + chunk_to_all()));
}

uint64_t NodeGeometry::ring_to_one_bytes() const {
  return to_pages(slots_to_one() * (kHeadBytes + chunk_to_one()));
}

uint64_t NodeGeometry::region_bytes() const {
  return counters_bytes() + ring_to_all_bytes() + ranks * ring_to_one_bytes();
}

// Removes the files that nobody has locked: a rank holds the lock of its own until it ends, however it does.
void NodeMemory::remove_left_behind() {
  constexpr int64_t kOldSeconds = 600;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), closedir);
  if (folder == nullptr) return;
  while (const dirent* const entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    struct stat about {};
    if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + 16) continue;
    if (fstatat(dirfd(folder.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() ||
        about.st_mtime + kOldSeconds > std::time(nullptr))
      continue;
    const int descriptor = openat(dirfd(folder.get()), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0) continue;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(folder.get()), entry->d_name, 0);
    close(descriptor);
  }
}

Status NodeMemory::open(uint64_t cookie, std::unique_ptr<NodeMemory>* memory) {
  auto opened = std::unique_ptr<NodeMemory>(new NodeMemory());
  const std::string name = file_name(cookie);
  const auto refused = [&](const char* what) {
    return Status{SHARDRUN_COMM_IO, fmt::format("memory between ranks of this node, /dev/shm{}: {}: {}", name,
                                                what, std::strerror(errno))};
  };
  opened->own_.cookie = cookie;
  opened->own_.descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (opened->own_.descriptor < 0) return refused("open");
  opened->name_ = name;
  (void)flock(opened->own_.descriptor,
              LOCK_SH | LOCK_NB);  // without it another rank may remove the name after ten minutes
  if (ftruncate(opened->own_.descriptor, static_cast<off_t>(to_pages(sizeof(Board)))) != 0)
    return refused("resize");
  if (Status status = reserve(opened->own_.descriptor, 0, to_pages(sizeof(Board))); !status.ok())
    return status;
  *memory = std::move(opened);
  return {};
}

NodeMemory::~NodeMemory() {
  forget_name();
  if (files_.empty()) files_.push_back(own_);
  for (const File& file : files_) {
    if (file.board != nullptr) munmap(file.board, to_pages(sizeof(Board)));
    if (file.descriptor >= 0) close(file.descriptor);
  }
}

Status NodeMemory::connect(std::span<const uint64_t> cookies, uint32_t mine, uint32_t crowd) {
  mine_ = mine;
  files_.resize(cookies.size());
  files_[mine] = own_;
  geometry_ = NodeGeometry(crowd);
  const uint64_t bytes = to_pages(sizeof(Board)) + 2 * kChannels * geometry_.region_bytes();
  if (ftruncate(own_.descriptor, static_cast<off_t>(bytes)) != 0)
    return {SHARDRUN_COMM_IO,
            fmt::format("/dev/shm refuses a file of {} bytes: {}{}", bytes, std::strerror(errno),
                        errno == EFBIG ? "; start the job behind `ulimit -f unlimited`" : "")};
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    File& file = files_[rank];
    file.cookie = cookies[rank];
    const std::string name = file_name(file.cookie);
    if (rank != mine) file.descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (file.descriptor < 0) {
      // A rank that has failed meanwhile took its file away.
      return {
          errno == ENOENT ? SHARDRUN_COMM_PEER_LOST : SHARDRUN_COMM_INVALID,
          fmt::format("/dev/shm{} of a rank of this node: {}: has it ended, or do the node's ranks not have "
                      "one /dev/shm?",
                      name, std::strerror(errno))};
    }
    void* board =
        mmap(nullptr, to_pages(sizeof(Board)), PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
    if (board == MAP_FAILED) return {SHARDRUN_COMM_IO, fmt::format("mmap: {}", std::strerror(errno))};
    file.board = static_cast<Board*>(board);
  }
  files_[mine].board->cookie.store(&own_.cookie, std::memory_order_relaxed);
  files_[mine].board->pid.store(getpid(), std::memory_order_release);
  return {};
}

void NodeMemory::forget_name() {
  if (!name_.empty()) shm_unlink(name_.c_str());
  name_.clear();
}

void NodeMemory::set_posted(uint32_t channel, uint64_t ticket) {
  files_[mine_].board->posted[channel].store(ticket, std::memory_order_release);
}

uint64_t NodeMemory::posted(uint32_t rank, uint32_t channel) const {
  return files_[rank].board->posted[channel].load(std::memory_order_acquire);
}

bool NodeMemory::notify(uint32_t rank) {
  Board& board = *files_[rank].board;
  board.notices.value.fetch_add(1, std::memory_order_seq_cst);
  return board.sleeping.load(std::memory_order_seq_cst) != 0 &&
         board.sleeping.exchange(0, std::memory_order_seq_cst) != 0;
}

uint64_t NodeMemory::notices() const {
  return files_[mine_].board->notices.value.load(std::memory_order_seq_cst);
}

bool NodeMemory::may_sleep(uint64_t notices_before) {
  files_[mine_].board->sleeping.store(1, std::memory_order_seq_cst);
  if (notices() == notices_before) return true;
  wake_up();
  return false;
}

void NodeMemory::wake_up() {
  files_[mine_].board->sleeping.store(0, std::memory_order_seq_cst);
}

void NodeMemory::withdraw() {
  if (mine_ < files_.size()) files_[mine_].board->is_withdrawn.store(1, std::memory_order_seq_cst);
}

bool NodeMemory::read(uint32_t rank, std::byte* to, const std::byte* from, uint64_t bytes) const {
  const Board& board = *files_[rank].board;
  const iovec here{to, bytes}, there{const_cast<std::byte*>(from), bytes};
  const ssize_t copied =
      process_vm_readv(board.pid.load(std::memory_order_acquire), &here, 1, &there, 1, /*flags=*/0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return copied == static_cast<ssize_t>(bytes) && board.is_withdrawn.load(std::memory_order_seq_cst) == 0;
}

// A rank may be in another process namespace, where its number is somebody else's, and kernels may refuse (yama).
bool NodeMemory::may_read(uint32_t rank) const {
  const Board& board = *files_[rank].board;
  if (board.pid.load(std::memory_order_acquire) == 0) return false;
  uint64_t cookie = 0;
  const auto* there = reinterpret_cast<const std::byte*>(board.cookie.load(std::memory_order_relaxed));
  return read(rank, reinterpret_cast<std::byte*>(&cookie), there, sizeof(cookie)) &&
         cookie == files_[rank].cookie;
}

NodeRegion::NodeRegion(NodeMemory* memory, uint32_t channel, uint32_t half, std::vector<uint32_t> members,
                       uint64_t group)
    : memory_(memory),
      geometry_(memory->geometry_),
      slots_to_all_(geometry_.slots_to_all()),
      slots_to_one_(geometry_.slots_to_one()),
      offset_(to_pages(sizeof(NodeMemory::Board)) + (2 * channel + half) * geometry_.region_bytes()),
      members_(std::move(members)),
      group_(group),
      mapped_(members_.size()),
      opened_(members_.size()),
      news_(members_.size()) {
  mine_ =
      static_cast<uint32_t>(std::find(members_.begin(), members_.end(), memory->mine()) - members_.begin());
}

NodeRegion::~NodeRegion() {
  for (std::byte* mapped : mapped_) {
    if (mapped != nullptr) munmap(mapped, geometry_.region_bytes());
  }
}

Status NodeRegion::attach(bool writes_to_all, bool writes_to_one, bool* ready) {
  *ready = false;
  if (mapped_[mine_] == nullptr) {
    if (Status status = reserve_counters(mine_); !status.ok()) return status;
    if (Status status = map(mine_); !status.ok()) return status;
  }
  if (Status status = reserve_rings(writes_to_all, writes_to_one); !status.ok()) return status;
  if (!is_open_) {
    if (!open_own()) return {};
    is_open_ = true;
    for (uint32_t member = 0; member < size(); ++member) tell(member);
  }
  bool all = true;
  for (uint32_t member = 0; member < size(); ++member) {
    if (opened_[member]) continue;
    struct stat about {};
    if (fstat(memory_->files_[members_[member]].descriptor, &about) != 0 ||
        static_cast<uint64_t>(about.st_size) < offset_ + geometry_.region_bytes()) {
      all = false;  // it has not come to its connect() yet
      continue;
    }
    // Its page may be a hole still. Where a full /dev/shm cannot fill that, a look at it would be a SIGBUS: that rank will say so.
    if (mapped_[member] == nullptr) {
      if (!reserve_counters(member).ok()) {
        all = false;
        continue;
      }
      if (Status status = map(member); !status.ok()) return status;
    }
    opened_[member] = header(member).group.load(std::memory_order_acquire) == group_;
    all = all && opened_[member];
  }
  *ready = all && agree_on_lending();
  return {};
}

// Tries whether this rank can read in the others' memory, and hears what they found. Returns false while some have not tried.
bool NodeRegion::agree_on_lending() {
  if (!has_tried_) {
    has_tried_ = true;
    const bool can = std::all_of(members_.begin(), members_.end(),
                                 [this](uint32_t rank) { return memory_->may_read(rank); });
    header(mine_).reads.store(can ? Reads::kYes : Reads::kNo, std::memory_order_release);
    for (uint32_t member = 0; member < size(); ++member) tell(member);
  }
  bool all_can = true;
  for (uint32_t member = 0; member < size(); ++member) {
    const Reads reads = header(member).reads.load(std::memory_order_acquire);
    if (reads == Reads::kUnknown) return false;
    all_can = all_can && reads == Reads::kYes;
  }
  may_lend_ = all_can;
  return true;
}

Status NodeRegion::reserve_counters(uint32_t member) {
  return reserve(memory_->files_[members_[member]].descriptor, offset_, geometry_.counters_bytes());
}

Status NodeRegion::map(uint32_t member) {
  const int descriptor = memory_->files_[members_[member]].descriptor;
  void* mapped = mmap(nullptr, geometry_.region_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                      static_cast<off_t>(offset_));
  if (mapped == MAP_FAILED) return {SHARDRUN_COMM_IO, fmt::format("mmap: {}", std::strerror(errno))};
  mapped_[member] = static_cast<std::byte*>(mapped);
  return {};
}

Status NodeRegion::reserve_rings(bool to_all, bool to_one) {
  const int descriptor = memory_->files_[members_[mine_]].descriptor;
  const uint64_t begin = offset_ + geometry_.counters_bytes();
  if (to_all && !has_to_all_) {
    if (Status status = reserve(descriptor, begin, geometry_.ring_to_all_bytes()); !status.ok())
      return status;
    has_to_all_ = true;
  }
  if (to_one && !has_to_one_) {
    const uint64_t bytes = size() * geometry_.ring_to_one_bytes();
    if (Status status = reserve(descriptor, begin + geometry_.ring_to_all_bytes(), bytes); !status.ok())
      return status;
    has_to_one_ = true;
  }
  return {};
}

// Returns whether the ranks of the group before have read all that this rank wrote. If not, this rank is told of each release.
bool NodeRegion::is_read() {
  const uint64_t head = ring_to_all(mine_).head.value.load(std::memory_order_relaxed);
  const auto all_have = [&](bool asks) {
    bool all = true;
    for (uint32_t reader = 0; reader < header(mine_).members.load(std::memory_order_relaxed); ++reader) {
      if (reader == header(mine_).mine.load(std::memory_order_relaxed)) continue;
      Ring& ring = ring_to_one(mine_, reader);
      const bool has =
          ring.tail.value.load(std::memory_order_seq_cst) == ring.head.value.load(std::memory_order_relaxed);
      if (!has && asks) ring.wants_room.store(1, std::memory_order_seq_cst);
      all = all && has && tail_to_all(mine_, reader).load(std::memory_order_seq_cst) == head;
    }
    return all;
  };
  if (all_have(/*asks=*/true)) return true;
  ring_to_all(mine_).wants_room.store(1, std::memory_order_seq_cst);
  return all_have(/*asks=*/false);
}

// Makes this rank's region the group's. Returns false while it cannot be.
bool NodeRegion::open_own() {
  Header& own = header(mine_);
  if (own.group.load(std::memory_order_relaxed) == group_) return true;
  if (!is_read()) return false;
  const uint64_t head = ring_to_all(mine_).head.value.load(std::memory_order_relaxed);
  for (uint32_t reader = 0; reader < geometry_.ranks; ++reader)
    tail_to_all(mine_, reader).store(head, std::memory_order_relaxed);
  own.members.store(size(), std::memory_order_relaxed);
  own.mine.store(mine_, std::memory_order_relaxed);
  own.reads.store(Reads::kUnknown, std::memory_order_relaxed);
  own.group.store(group_, std::memory_order_release);
  return true;
}

NodeRegion::Header& NodeRegion::header(uint32_t member) const {
  return *reinterpret_cast<Header*>(mapped_[member]);
}

NodeRegion::Ring& NodeRegion::ring_to_all(uint32_t owner) const {
  return *reinterpret_cast<Ring*>(mapped_[owner] + 64);
}

NodeRegion::Ring& NodeRegion::ring_to_one(uint32_t owner, uint32_t reader) const {
  return *reinterpret_cast<Ring*>(mapped_[owner] + 64 + (1 + reader) * sizeof(NodeRing));
}

std::atomic<uint64_t>& NodeRegion::tail_to_all(uint32_t owner, uint32_t reader) const {
  std::byte* at = mapped_[owner] + 64 + (1 + geometry_.ranks) * sizeof(NodeRing) + reader * sizeof(Counter);
  return reinterpret_cast<Counter*>(at)->value;
}

std::byte* NodeRegion::slot_to_all(uint32_t owner, uint64_t number) const {
  return mapped_[owner] + geometry_.counters_bytes() +
         number % slots_to_all_ * (kHeadBytes + geometry_.chunk_to_all());
}

std::byte* NodeRegion::slot_to_one(uint32_t owner, uint32_t reader, uint64_t number) const {
  return mapped_[owner] + geometry_.counters_bytes() + geometry_.ring_to_all_bytes() +
         reader * geometry_.ring_to_one_bytes() +
         number % slots_to_one_ * (kHeadBytes + geometry_.chunk_to_one());
}

std::byte* NodeRegion::room_to_all() {
  Ring& ring = ring_to_all(mine_);
  const uint64_t head = ring.head.value.load(std::memory_order_relaxed);
  const auto is_full = [&] {
    for (uint32_t reader = 0; reader < size(); ++reader) {
      if (reader == mine_) continue;
      if (head - tail_to_all(mine_, reader).load(std::memory_order_seq_cst) >= slots_to_all_) return true;
    }
    return false;
  };
  if (is_full()) {
    ring.wants_room.store(1, std::memory_order_seq_cst);
    if (is_full()) return nullptr;
  }
  ring.wants_room.store(0, std::memory_order_relaxed);
  return slot_to_all(mine_, head) + kHeadBytes;
}

void NodeRegion::publish_to_all(const ChunkHead& head) {
  Ring& ring = ring_to_all(mine_);
  const uint64_t number = ring.head.value.load(std::memory_order_relaxed);
  new (slot_to_all(mine_, number)) ChunkHead(head);
  ring.head.value.store(number + 1, std::memory_order_release);
  for (uint32_t member = 0; member < size(); ++member) tell(member);
}

const ChunkHead* NodeRegion::next_from_all(uint32_t member) const {
  const uint64_t tail = tail_to_all(member, mine_).load(std::memory_order_relaxed);
  if (ring_to_all(member).head.value.load(std::memory_order_acquire) == tail) return nullptr;
  return reinterpret_cast<const ChunkHead*>(slot_to_all(member, tail));
}

void NodeRegion::release_from_all(uint32_t member) {
  std::atomic<uint64_t>& tail = tail_to_all(member, mine_);
  tail.store(tail.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (ring_to_all(member).wants_room.load(std::memory_order_seq_cst) != 0) tell(member);
}

bool NodeRegion::copy_from_all(uint32_t member, const ChunkHead& head, std::byte* to) const {
  if (head.lent != nullptr) return memory_->read(members_[member], to, head.lent, head.bytes);
  copy_bytes(to, bytes_of(&head), head.bytes);
  return true;
}

bool NodeRegion::is_returned() {
  Ring& ring = ring_to_all(mine_);
  const uint64_t head = ring.head.value.load(std::memory_order_relaxed);
  const auto all_have = [&] {
    for (uint32_t reader = 0; reader < size(); ++reader) {
      if (reader != mine_ && tail_to_all(mine_, reader).load(std::memory_order_seq_cst) != head) return false;
    }
    return true;
  };
  if (!all_have()) {
    ring.wants_room.store(1, std::memory_order_seq_cst);
    if (!all_have()) return false;
  }
  ring.wants_room.store(0, std::memory_order_relaxed);
  return true;
}

bool NodeRegion::lags_to_all(uint32_t member) const {
  return member != mine_ && tail_to_all(mine_, member).load(std::memory_order_relaxed) !=
                                ring_to_all(mine_).head.value.load(std::memory_order_relaxed);
}

bool NodeRegion::lags_to_one(uint32_t member) const {
  const Ring& ring = ring_to_one(mine_, member);
  return member != mine_ &&
         ring.tail.value.load(std::memory_order_relaxed) != ring.head.value.load(std::memory_order_relaxed);
}

std::byte* NodeRegion::room_to_one(uint32_t member) {
  Ring& ring = ring_to_one(mine_, member);
  const uint64_t head = ring.head.value.load(std::memory_order_relaxed);
  const auto is_full = [&] {
    return head - ring.tail.value.load(std::memory_order_seq_cst) >= slots_to_one_;
  };
  if (is_full()) {
    ring.wants_room.store(1, std::memory_order_seq_cst);
    if (is_full()) return nullptr;
  }
  ring.wants_room.store(0, std::memory_order_relaxed);
  return slot_to_one(mine_, member, head) + kHeadBytes;
}

void NodeRegion::publish_to_one(uint32_t member, const ChunkHead& head) {
  Ring& ring = ring_to_one(mine_, member);
  const uint64_t number = ring.head.value.load(std::memory_order_relaxed);
  new (slot_to_one(mine_, member, number)) ChunkHead(head);
  ring.head.value.store(number + 1, std::memory_order_release);
  tell(member);
}

const ChunkHead* NodeRegion::next_from_one(uint32_t member) const {
  Ring& ring = ring_to_one(member, mine_);
  const uint64_t tail = ring.tail.value.load(std::memory_order_relaxed);
  if (ring.head.value.load(std::memory_order_acquire) == tail) return nullptr;
  return reinterpret_cast<const ChunkHead*>(slot_to_one(member, mine_, tail));
}

void NodeRegion::release_from_one(uint32_t member) {
  Ring& ring = ring_to_one(member, mine_);
  ring.tail.value.store(ring.tail.value.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (ring.wants_room.load(std::memory_order_seq_cst) != 0) tell(member);
}

const std::byte* NodeRegion::bytes_of(const ChunkHead* head) {
  return reinterpret_cast<const std::byte*>(head) + kHeadBytes;
}

void NodeRegion::take_news(std::vector<uint32_t>* ranks) {
  for (uint32_t member = 0; member < size(); ++member) {
    if (news_[member] && member != mine_) ranks->push_back(members_[member]);
    news_[member] = false;
  }
}

}  // namespace shardrun::ofi
