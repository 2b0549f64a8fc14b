#include "tests/emulation/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulation/block.h"
#include "tests/emulation/settings.h"

namespace shardrun::emulation {
namespace {

constexpr size_t kPage = 4096, kAlignment = 256;
constexpr int kRubbish = 0xff;

constexpr size_t rounded(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Maps `bytes` of whole pages between two that cannot be read.
std::byte* map_guarded(size_t bytes) {
  void* const all =
      mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const usable = static_cast<std::byte*>(all) + kPage;
  return mprotect(usable, bytes, PROT_READ | PROT_WRITE) == 0 ? usable : nullptr;
}

// Maps pages of a file of rubbish, of which only those that are written become memory of their own.
void fill_with_rubbish(std::byte* memory, size_t bytes) {
  constexpr size_t kFile = size_t{16} << 20;
  static const int file = [] {
    const int made = memfd_create("rubbish", 0);
    const std::vector<char> values(kFile, static_cast<char>(kRubbish));
    if (made < 0 || write(made, values.data(), kFile) != static_cast<ssize_t>(kFile)) std::abort();
    return made;
  }();
  for (size_t at = 0; at < bytes; at += kFile) {
    const size_t part = std::min(kFile, bytes - at);
    if (mmap(memory + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
      std::abort();
  }
}

void say_who(int signal, siginfo_t* info, void*) {
  if (signal == SIGILL) {  // the compiler is told to check every access, and this is how it reports
    std::fprintf(stderr, "emulated GPU: %s takes a word that is not aligned to its size\n",
                 who_runs().c_str());
  } else {
    const bool overflown = stack_overflown_to(info->si_addr);
    std::fprintf(
        stderr, "emulated GPU: %s touched %p, %s\n", who_runs().c_str(), info->si_addr,
        overflown ? "below its stack: too many variables for an emulated thread"
                  : "which is closed to it: memory of the GPU outside of its work, freed, or behind an end");
  }
  std::signal(signal, SIG_DFL);  // so that the instruction faults again
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes)
    : end_(map_guarded(rounded(bytes, kPage)) + rounded(bytes, kPage)) {}

std::byte* DeviceMemory::allocate(size_t bytes) {
  Allocation made{};
  made.bytes = bytes;
  made.rounded = rounded(bytes, kAlignment);
  made.mapped = rounded(made.rounded, kPage);
  if (made.mapped > free_bytes() || (made.map = map_guarded(made.mapped)) == nullptr) return nullptr;
  used_ += made.mapped;
  std::byte* const begin = made.map + made.mapped - made.rounded;
  fill_with_rubbish(made.map, made.mapped);
  allocations_.emplace(begin, made);
  protect(made, is_open_);
  return begin;
}

bool DeviceMemory::release(void* begin) {
  const auto found = allocations_.find(static_cast<std::byte*>(begin));
  if (found == allocations_.end()) return false;
  const Allocation& allocation = found->second;
  protect(allocation, true);
  const std::byte* const at = found->first;
  for (size_t i = allocation.bytes; i < allocation.rounded; ++i) {
    if (at[i] == std::byte{kRubbish}) continue;
    note_finding("something wrote at byte " + std::to_string(i) + " of " + std::to_string(allocation.bytes) +
                 " bytes of the GPU's memory");
    break;
  }
  used_ -= allocation.mapped;
  munmap(allocation.map - kPage, allocation.mapped + 2 * kPage);
  allocations_.erase(found);
  return true;
}

bool DeviceMemory::has(const void* at, size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(at);
  auto behind = allocations_.upper_bound(first);
  if (behind == allocations_.begin()) return false;
  --behind;
  return first + bytes <= behind->first + behind->second.bytes;
}

size_t DeviceMemory::free_bytes() const {
  const size_t all = settings().memory_bytes;
  return used_ < all ? all - used_ : 0;
}

size_t DeviceMemory::asked_bytes() const {
  size_t bytes = 0;
  for (const auto& [begin, allocation] : allocations_) bytes += allocation.bytes;
  return bytes;
}

void DeviceMemory::protect(const Allocation& allocation, bool is_open) const {
  if (!settings().closes_memory) return;
  if (mprotect(allocation.map, allocation.mapped, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
    std::abort();
}

void DeviceMemory::open() {
  is_open_ = true;
  for (const auto& [begin, allocation] : allocations_) protect(allocation, true);
}

void DeviceMemory::close() {
  is_open_ = false;
  for (const auto& [begin, allocation] : allocations_) protect(allocation, false);
}

bool PinnedMemory::add(const void* begin, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  const auto behind = ranges_.lower_bound(first + bytes);
  if (behind != ranges_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second > first) return false;
  }
  ranges_.emplace(first, bytes);
  return true;
}

bool PinnedMemory::remove(const void* begin) {
  return ranges_.erase(static_cast<const std::byte*>(begin)) != 0;
}

bool PinnedMemory::has(const void* at, size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(at);
  auto behind = ranges_.upper_bound(first);
  if (behind == ranges_.begin()) return false;
  --behind;
  return first + bytes <= behind->first + behind->second;
}

size_t PinnedMemory::bytes() const {
  size_t bytes = 0;
  for (const auto& [begin, size] : ranges_) bytes += size;
  return bytes;
}

void explain_faults() {
  static std::byte stack[64 * 1024];
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  struct sigaction action {};
  action.sa_sigaction = say_who;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaltstack(&own, nullptr);
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace shardrun::emulation
