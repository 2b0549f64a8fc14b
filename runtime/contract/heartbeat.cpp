#include "runtime/contract/heartbeat.h"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <new>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"

namespace shardrun::contract {
namespace {

constexpr std::string_view kBeatWord = "beat";
constexpr std::string_view kHelloWord = "hello 2";
constexpr std::string_view kRankWord = "rank", kRanksWord = "ranks";
constexpr int64_t kMostRanks = int64_t{1} << 30;
constexpr size_t kBeatNumbers = 10;  // and one letter between the sixth and the seventh number

std::string_view take_word(std::string_view& line) {
  return base::take_until(line, ' ');
}

bool take_number(std::string_view& line, int64_t& out) {
  const std::string_view word = take_word(line);
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), out);
  return failure == std::errc() && end == word.data() + word.size() && out >= 0;
}

bool take_prefix(std::string_view& line, std::string_view prefix) {
  if (!line.starts_with(prefix) || line.size() <= prefix.size() || line[prefix.size()] != ' ') return false;
  line.remove_prefix(prefix.size() + 1);
  return true;
}

}  // namespace

Result<base::UniqueFd> make_shared_progress() {
  base::UniqueFd fd(::memfd_create("shardrun-progress", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), sizeof(ProgressPage)) != 0)
    return base::errno_error(base::Code::kIo, "memory for heartbeats", errno);
  return fd;
}

Result<SharedProgress> open_shared_progress(int fd) {
  void* memory = ::mmap(nullptr, sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return base::errno_error(base::Code::kIo, "memory for heartbeats", errno);
  // Its bytes are those of a page in which nothing has happened.
  return SharedProgress(static_cast<ProgressPage*>(memory),
                        [](ProgressPage* page) { ::munmap(page, sizeof(ProgressPage)); });
}

std::string to_line(const Beat& beat) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", kBeatWord, beat.sequence,
                     static_cast<uint32_t>(beat.phase), beat.step, beat.entered, beat.moves,
                     beat.waiting ? 1 : 0, beat.state, beat.step_microseconds, beat.busy_microseconds,
                     beat.quiet_milliseconds, beat.resident_bytes);
}

std::string to_line(const Hello& hello) {
  return fmt::format("{} {} {}", kHelloWord, hello.global_rank, hello.node);
}

std::optional<Beat> parse_beat(std::string_view line) {
  if (!take_prefix(line, kBeatWord)) return std::nullopt;
  std::array<int64_t, kBeatNumbers> numbers{};
  char state = '?';
  for (size_t i = 0; i < kBeatNumbers; ++i) {
    if (i == 6) {
      const std::string_view word = take_word(line);
      if (word.size() != 1) return std::nullopt;
      state = word.front();
    }
    if (!take_number(line, numbers[i])) return std::nullopt;
  }
  if (!line.empty() || numbers[1] > static_cast<int64_t>(RankPhase::kEnding)) return std::nullopt;
  Beat beat;
  beat.sequence = static_cast<uint64_t>(numbers[0]);
  beat.phase = static_cast<RankPhase>(numbers[1]);
  beat.step = numbers[2];
  beat.entered = static_cast<uint64_t>(numbers[3]);
  beat.moves = static_cast<uint64_t>(numbers[4]);
  beat.waiting = numbers[5] != 0;
  beat.state = state;
  beat.step_microseconds = numbers[6];
  beat.busy_microseconds = numbers[7];
  beat.quiet_milliseconds = numbers[8];
  beat.resident_bytes = numbers[9];
  return beat;
}

std::optional<Hello> parse_hello(std::string_view line) {
  if (!take_prefix(line, kHelloWord)) return std::nullopt;
  Hello hello;
  int64_t rank = 0;
  if (!take_number(line, rank) || rank >= kMostRanks || line.empty()) return std::nullopt;
  hello.global_rank = static_cast<int>(rank);
  hello.node = line;
  return hello;
}

std::string to_line(std::span<const RankWord> words) {
  std::string line(kRanksWord);
  char between = ' ';
  for (const RankWord& word : words) {
    line += between;
    line += std::to_string(word.global_rank) + ' ';
    line += word.beat ? to_line(*word.beat) : std::string(kFarewellLine);
    between = ';';
  }
  return line;
}

std::optional<std::vector<RankWord>> parse_rank_words(std::string_view line) {
  if (!take_prefix(line, kRanksWord)) return std::nullopt;
  std::vector<RankWord> words;
  while (true) {
    const size_t end = line.find(';');
    std::string_view said = line.substr(0, end);
    int64_t rank = 0;
    if (!take_number(said, rank) || rank >= kMostRanks) return std::nullopt;
    RankWord word{static_cast<int>(rank), std::nullopt};
    if (said != kFarewellLine && !(word.beat = parse_beat(said))) return std::nullopt;
    words.push_back(word);
    if (end == std::string_view::npos) return words;
    line.remove_prefix(end + 1);
  }
}

std::string to_line(const RankSight& sight) {
  return fmt::format("{} {} {} {} {} {} {}", kRankWord, sight.global_rank, sight.heard ? 1 : 0,
                     sight.left ? 1 : 0, sight.milliseconds_ago, sight.node, to_line(sight.beat));
}

std::optional<RankSight> parse_rank_sight(std::string_view line) {
  if (!take_prefix(line, kRankWord)) return std::nullopt;
  int64_t rank = 0, heard = 0, left = 0;
  RankSight sight;
  if (!take_number(line, rank) || rank >= kMostRanks || !take_number(line, heard) ||
      !take_number(line, left) || !take_number(line, sight.milliseconds_ago)) {
    return std::nullopt;
  }
  sight.global_rank = static_cast<int>(rank);
  sight.heard = heard != 0;
  sight.left = left != 0;
  sight.node = take_word(line);
  const auto beat = parse_beat(line);
  if (!beat || sight.node.empty()) return std::nullopt;
  sight.beat = *beat;
  return sight;
}

void fields(auto& visit, base::Is<WatchPlace> auto& place) {
  visit.version(2);
  visit.later("key", place.key);
  visit("port", place.port);
  visit.later("addresses", place.addresses);
  visit("lease_seconds", place.lease_seconds);
}

std::string to_json(const WatchPlace& place) {
  return base::json_of(place);
}

Result<WatchPlace> parse_watch_place(std::string_view text) {
  return base::parse_fields<WatchPlace>(text, "watch.json");
}

}  // namespace shardrun::contract
