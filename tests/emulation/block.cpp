#include "tests/emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/emulation/fiber.h"
#include "tests/emulation/memory.h"
#include "tests/emulation/settings.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace shardrun::emulation {
namespace {

constexpr int kLanes = 32;
constexpr std::byte kRubbish{0xff};  // NaN in every floating-point type
constexpr size_t kGuard = 128;       // also the alignment of dynamic shared memory

enum class State { kReady, kAtBarrier, kAtStep, kEnded };

struct Copy {
  void* to;
  const void* from;  // null: zeros
  uint64_t group;
  bool has_arrived;
};

struct Thread {
  Fiber fiber;
  uint3 index{};
  State state = State::kEnded;
  Step step = Step::kShuffle;
  std::vector<Copy> copies;  // those under way
  uint64_t groups = 0;       // those that are committed
};

struct Warp {
  // The words of this step and of the previous one, which may still be read.
  std::array<std::array<LaneWords, kLanes>, 2> words;
  std::array<int, kLanes> steps;
};

std::string text_of(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

class Machine {
 public:
  bool run(const Kernel& kernel);

  // These are called by the running thread.
  void wait_at_barrier() { pause(State::kAtBarrier); }
  const LaneWords* take_step(Step step, unsigned lanes, const LaneWords& mine);
  void start_copy(void* to, const void* from);
  void end_thread();
  void commit_copies() { ++running().groups; }
  void wait_for_copies(int pending);
  [[noreturn]] void fail(const std::string& text);
  bool in_shared_memory(const void* at, size_t bytes) const;
  std::byte* dynamic_bytes() { return dynamic_; }

  void add_shared_part(const std::byte* memory, size_t bytes);
  uint64_t block_number() const { return block_number_; }
  int current() const { return current_; }
  std::string who() const;
  bool overflown_to(const void* address) const;

 private:
  Thread& running() { return *threads_[static_cast<size_t>(current_)]; }
  void pause(State state);
  void run_block();
  void begin_block();
  void end_block();
  void run_warp(int warp);
  static void deliver(const Copy& copy);
  bool release_step(int begin, int end);
  void release_barrier();
  void find(const std::string& text);
  std::vector<int> ordered(int count) const;

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  const Kernel* kernel_ = nullptr;
  int count_ = 0;     // threads of a block
  int current_ = -1;  // thread
  bool failed_ = false;
  uint64_t block_number_ = 0;
  GuardedMemory dynamic_memory_{kMostSharedBytes + kGuard};
  std::byte* dynamic_ = nullptr;
  size_t static_bytes_ = 0;
  std::vector<std::pair<const std::byte*, size_t>> parts_;  // those that this block has
};

Machine& machine() {
  static Machine one;
  return one;
}

void run_thread(void* body) {
  (*static_cast<const std::function<void()>*>(body))();
  machine().end_thread();
}

std::vector<int> Machine::ordered(int count) const {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (choice() == Choice::kLast) std::reverse(order.begin(), order.end());
  if (choice() == Choice::kRandom) std::shuffle(order.begin(), order.end(), chance());
  return order;
}

void Machine::pause(State state) {
  Thread& thread = running();
  thread.state = state;
  thread.fiber.pause();
}

void Machine::end_thread() {
  if (!running().copies.empty()) fail("ends while copies into shared memory are under way");
  pause(State::kEnded);
}

void Machine::find(const std::string& text) {
  note_finding(text);
  failed_ = true;
}

void Machine::fail(const std::string& text) {
  find(who() + " " + text);
  for (;;) pause(State::kEnded);  // nothing resumes it
}

const LaneWords* Machine::take_step(Step step, unsigned lanes, const LaneWords& mine) {
  if (lanes != 0xffffffffU) fail("takes a step of a warp without all lanes, which is not emulated");
  Warp& warp = warps_[static_cast<size_t>(current_ / kLanes)];
  const auto lane = static_cast<size_t>(current_ % kLanes);
  auto& words = warp.words[warp.steps[lane]++ % 2];
  words[lane] = mine;
  running().step = step;
  pause(State::kAtStep);
  return words.data();
}

void Machine::start_copy(void* to, const void* from) {
  if (!in_shared_memory(to, 16)) fail("copies to where the block has no shared memory");
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("copies 16 bytes that are not aligned to 16");
  const bool at_once = choice() == Choice::kLast || (choice() == Choice::kRandom && chance()() % 2 == 0);
  running().copies.push_back({to, from, running().groups, at_once});
  if (at_once) deliver(running().copies.back());
}

void Machine::deliver(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

void Machine::wait_for_copies(int pending) {
  Thread& thread = running();
  const auto arrives = [&](const Copy& copy) {
    return copy.group + static_cast<uint64_t>(pending) < thread.groups;
  };
  for (const Copy& copy : thread.copies) {
    if (arrives(copy) && !copy.has_arrived) deliver(copy);
  }
  thread.copies.erase(std::remove_if(thread.copies.begin(), thread.copies.end(), arrives),
                      thread.copies.end());
}

bool Machine::in_shared_memory(const void* at, size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(at);
  const auto is_in = [&](const std::byte* begin, size_t size) {
    return first >= begin && first + bytes <= begin + size;
  };
  return is_in(dynamic_, kernel_->shared_bytes) ||
         std::any_of(parts_.begin(), parts_.end(),
                     [&](const auto& part) { return is_in(part.first, part.second); });
}

void Machine::add_shared_part(const std::byte* memory, size_t bytes) {
  parts_.emplace_back(memory, bytes);
  static_bytes_ += bytes;
  const size_t most = kernel_->may_have_more ? kMostSharedBytes : kUsualSharedBytes;
  if (static_bytes_ + kernel_->shared_bytes > most) {
    fail("has " + std::to_string(static_bytes_ + kernel_->shared_bytes) +
         " bytes of shared memory, more than the " + std::to_string(most) + " that its kernel may have");
  }
}

void Machine::begin_block() {
  ++block_number_;
  static_bytes_ = 0;
  parts_.clear();
  // Its end is the last byte that can be read.
  const size_t rounded = (kernel_->shared_bytes + kGuard - 1) / kGuard * kGuard;
  dynamic_ = dynamic_memory_.end() - rounded;
  std::memset(dynamic_ - kGuard, static_cast<int>(kRubbish), rounded + kGuard);
  for (int i = 0; i < count_; ++i) {
    Thread& thread = *threads_[static_cast<size_t>(i)];
    const auto n = static_cast<unsigned>(i);
    const dim3& size = kernel_->block;
    thread.index = {n % size.x, n / size.x % size.y, n / size.x / size.y};
    thread.state = State::kReady;
    thread.copies.clear();
    thread.groups = 0;
    thread.fiber.prepare(run_thread, const_cast<std::function<void()>*>(&kernel_->body));
  }
  for (Warp& warp : warps_) warp.steps.fill(0);
}

void Machine::end_block() {
  const size_t used = kernel_->shared_bytes, rounded = (used + kGuard - 1) / kGuard * kGuard;
  const auto is_changed = [](std::byte value) { return value != kRubbish; };
  if (std::any_of(dynamic_ - kGuard, dynamic_, is_changed) ||
      std::any_of(dynamic_ + used, dynamic_ + rounded, is_changed)) {
    find("block " + text_of(blockIdx) + " wrote beside its dynamic shared memory");
  }
}

// Lets the lanes [begin, end) go on if all of them have come to the same step.
bool Machine::release_step(int begin, int end) {
  const auto at = [&](int i) -> Thread& { return *threads_[static_cast<size_t>(i)]; };
  int waiting = 0, first = -1;
  for (int i = begin; i < end; ++i) {
    if (at(i).state != State::kAtStep) continue;
    if (waiting++ == 0) first = i;
  }
  if (waiting == 0) return false;
  current_ = first;
  if (waiting != kLanes) {
    find(who() +
         " waits at a step of its warp for lanes that have ended, are at a barrier or were never there");
    return false;
  }
  for (int i = begin; i < end; ++i) {
    if (at(i).step != at(first).step) {
      find(who() + " is at another step than other lanes of its warp");
      return false;
    }
  }
  for (int i = begin; i < end; ++i) at(i).state = State::kReady;
  return true;
}

// Runs until every lane has ended or is at a barrier.
void Machine::run_warp(int warp) {
  const int begin = warp * kLanes, end = std::min(begin + kLanes, count_);
  const bool backwards = choice() == Choice::kLast;
  do {
    for (int step = 0; step < end - begin; ++step) {
      current_ = backwards ? end - 1 - step : begin + step;
      Thread& thread = running();
      if (thread.state != State::kReady) continue;
      threadIdx = thread.index;
      thread.fiber.resume();
      if (failed_) return;
    }
  } while (release_step(begin, end));
}

void Machine::release_barrier() {
  const auto is_at_barrier = [](const auto& thread) { return thread->state == State::kAtBarrier; };
  const auto end = threads_.begin() + count_;
  const auto waiting = std::count_if(threads_.begin(), end, is_at_barrier);
  if (waiting != count_) {
    current_ = static_cast<int>(std::find_if(threads_.begin(), end, is_at_barrier) - threads_.begin());
    return find(who() + " waits at a barrier that " + std::to_string(count_ - waiting) +
                " threads of its block will not come to");
  }
  std::for_each(threads_.begin(), end, [](auto& thread) { thread->state = State::kReady; });
}

void Machine::run_block() {
  const auto end = threads_.begin() + count_;
  begin_block();
  for (;;) {
    for (const int warp : ordered(static_cast<int>(warps_.size()))) {
      run_warp(warp);
      if (failed_) return;
    }
    if (std::all_of(threads_.begin(), end, [](const auto& thread) { return thread->state == State::kEnded; }))
      return end_block();
    release_barrier();
    if (failed_) return;
  }
}

bool Machine::run(const Kernel& kernel) {
  kernel_ = &kernel;
  failed_ = false;
  count_ = static_cast<int>(kernel.block.x * kernel.block.y * kernel.block.z);
  warps_.resize(static_cast<size_t>((count_ + kLanes - 1) / kLanes));
  while (static_cast<int>(threads_.size()) < count_) threads_.push_back(std::make_unique<Thread>());
  blockDim = kernel.block;
  gridDim = kernel.grid;
  const uint64_t across = kernel.grid.x, blocks = across * kernel.grid.y * kernel.grid.z;
  for (uint64_t i = 0; i < blocks && !failed_; ++i) {
    const uint64_t at = choice() == Choice::kLast ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(at % across), static_cast<unsigned>(at / across % kernel.grid.y),
                static_cast<unsigned>(at / across / kernel.grid.y)};
    run_block();
  }
  current_ = -1;
  return !failed_;
}

std::string Machine::who() const {
  if (current_ < 0) return "the host";
  return "thread " + text_of(threads_[static_cast<size_t>(current_)]->index) + " of block " +
         text_of(blockIdx) + " (of " + text_of({gridDim.x, gridDim.y, gridDim.z}) + " blocks, " +
         std::to_string(count_) + " threads)";
}

bool Machine::overflown_to(const void* address) const {
  return std::any_of(threads_.begin(), threads_.end(),
                     [&](const auto& thread) { return thread->fiber.has_overflown_to(address); });
}

std::string& findings() {
  static std::string text;
  return text;
}

float half_of(uint64_t word, int half) {
  return __uint_as_float(static_cast<uint32_t>(word >> (16 * half) & 0xffff) << 16);
}

void load_matrices_at(uint32_t (&r)[4], const void* from, bool transposed) {
  if (!machine().in_shared_memory(from, 16))
    machine().fail("loads a matrix's row from outside of shared memory");
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    machine().fail("loads a matrix's row that is not aligned to 16");
  const LaneWords* const rows =
      machine().take_step(Step::kLoadMatrices, 0xffffffffU, {reinterpret_cast<uintptr_t>(from)});
  const int mine = lane();
  for (int i = 0; i < 4; ++i) {
    const auto element = [&](int row, int column) {
      uint16_t value = 0;
      std::memcpy(&value, reinterpret_cast<const std::byte*>(rows[8 * i + row][0]) + 2 * column,
                  sizeof value);
      return uint32_t{value};
    };
    const int row = mine / 4, column = mine % 4 * 2;
    r[i] = transposed ? element(column, row) | element(column + 1, row) << 16
                      : element(row, column) | element(row, column + 1) << 16;
  }
  // Rows are read before any lane may change them.
  (void)machine().take_step(Step::kLoadMatrices, 0xffffffffU, {});
}

}  // namespace

bool run_kernel(const Kernel& kernel) {
  return machine().run(kernel);
}

void note_finding(const std::string& text) {
  std::fprintf(stderr, "emulated GPU: %s\n", text.c_str());
  findings() += text + "\n";
}

std::string take_findings() {
  return std::exchange(findings(), {});
}

bool has_findings() {
  return !findings().empty();
}

std::string who_runs() {
  return machine().who();
}

bool stack_overflown_to(const void* address) {
  return machine().overflown_to(address);
}

const LaneWords* take_step(Step step, unsigned lanes, const LaneWords& mine) {
  return machine().take_step(step, lanes, mine);
}

int lane() {
  return machine().current() % kLanes;
}

SharedPart::SharedPart(size_t bytes, size_t alignment)
    : bytes_(bytes),
      memory_((new GuardedMemory(bytes + alignment))->end() -
              (bytes + alignment - 1) / alignment * alignment) {}

void* SharedPart::of_block() {
  if (filled_for_ != machine().block_number()) {
    filled_for_ = machine().block_number();
    std::memset(memory_, static_cast<int>(kRubbish), bytes_);
    machine().add_shared_part(memory_, bytes_);
  }
  return memory_;
}

std::byte* dynamic_shared_bytes() {
  return machine().dynamic_bytes();
}

void start_copy(const void* shared, const void* from, bool is_there) {
  machine().start_copy(const_cast<void*>(shared), is_there ? from : nullptr);
}
void commit_copies() {
  machine().commit_copies();
}
void wait_for_copies(int pending) {
  machine().wait_for_copies(pending);
}
void load_matrices(uint32_t (&r)[4], const void* from) {
  load_matrices_at(r, from, false);
}
void load_matrices_transposed(uint32_t (&r)[4], const void* from) {
  load_matrices_at(r, from, true);
}

// Element (row, k) of a is in lane 4·(row % 8) + k % 8 / 2, in register row / 8 + 2·(k / 8); element (k, column) of
// b is in lane 4·column + k % 8 / 2, in register k / 8.
void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const LaneWords* const all =
      machine().take_step(Step::kMultiplyAdd, 0xffffffffU, {a[0], a[1], a[2], a[3], b0, b1});
  const int mine = lane();
  for (int i = 0; i < 4; ++i) {
    const int row = mine / 4 + i / 2 * 8, column = mine % 4 * 2 + i % 2;
    double total = sum[i];
    for (int k = 0; k < 16; ++k) {
      const auto high = static_cast<size_t>(k / 8);
      const float left =
          half_of(all[row % 8 * 4 + k % 8 / 2][static_cast<size_t>(row / 8) + 2 * high], k % 2);
      total += double{left} * half_of(all[column * 4 + k % 8 / 2][4 + high], k % 2);
    }
    sum[i] = static_cast<float>(total);
  }
}

}  // namespace shardrun::emulation

void __syncthreads() {
  shardrun::emulation::machine().wait_at_barrier();
}
