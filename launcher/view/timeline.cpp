#include "launcher/view/timeline.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/view/progress.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/run_lines.h"

namespace shardrun::launcher {
namespace {

using record::EventLine;
using record::MetricsLine;
using Mark = TimelineEntry::Mark;
using Phase = TimelineEntry::Phase;

using Training = TrainingNotes::Attempt;

std::string how(const record::RankExit& exit) {
  if (exit.peer_lost) return "lost contact to another rank";
  if (exit.signal) return contract::signal_name(*exit.signal);
  return fmt::format("exit code {}", exit.exit_code.value_or(-1));
}

// Returns ascending numbers as "0,1,4-999": three and more that follow each other as a range.
std::string ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (last < i + 2) last = i;
    parts.push_back(last == i ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

// Returns the nodes of an attempt; of very many the first and the last, for the record has them all.
std::string names(const std::vector<std::string>& nodes) {
  constexpr size_t kMost = 16;
  if (nodes.size() <= kMost) return fmt::format("{}", fmt::join(nodes, " "));
  return fmt::format("{} nodes: {} {} {} … {}", nodes.size(), nodes[0], nodes[1], nodes[2], nodes.back());
}

// Adds one line for all ranks that ended alike.
void add_collateral(const record::Attempt& attempt, const std::vector<record::RankExit>& exits,
                    std::vector<TimelineEntry>& entries) {
  struct Group {
    double first = 0.0;
    std::vector<int> ranks;
  };
  std::map<std::string, Group> groups;
  for (const record::RankExit& exit : exits) {
    if (exit.exit_code == 0 || (attempt.first_cause && attempt.first_cause->global_rank == exit.global_rank))
      continue;
    Group& group = groups[how(exit)];
    group.first = group.ranks.empty() ? exit.ended : std::min(group.first, exit.ended);
    group.ranks.push_back(exit.global_rank);
  }
  for (auto& [words, group] : groups) {
    std::sort(group.ranks.begin(), group.ranks.end());
    entries.push_back({group.first, attempt.number, Mark::kCollateral,
                       fmt::format("collateral: {} {} ended because of it ({})",
                                   group.ranks.size() == 1 ? "rank" : "ranks", ranges(group.ranks), words),
                       Phase::kCollateral});
  }
}

void add_training(const Training& training, int attempt, std::optional<double> fault_before,
                  std::vector<TimelineEntry>& entries) {
  const auto add = [&](double time, std::string text, Phase phase = Phase::kTraining) {
    entries.push_back({time, attempt, Mark::kNone, std::move(text), phase});
  };
  if (training.barrier) add(*training.barrier, "all ranks have met", Phase::kBarrier);
  if (training.first_step) {
    std::string text = fmt::format("first step: {}", training.first);
    if (fault_before) text += fmt::format(", {:.1f} s after the fault", *training.first_step - *fault_before);
    add(*training.first_step, text, Phase::kFirstStep);
  }
  if (training.last_checkpoint) {
    add(*training.last_checkpoint, training.checkpoints == 1
                                       ? fmt::format("checkpoint of step {}", training.checkpoint)
                                       : fmt::format("checkpoint of step {}, the last of {}",
                                                     training.checkpoint, training.checkpoints));
  }
}

void add_end(const record::Attempt& attempt, const std::vector<record::RankExit>& exits,
             const std::string& next, std::vector<TimelineEntry>& entries) {
  double when = attempt.ended.value_or(0.0);
  const auto& cause = attempt.first_cause;
  if (cause) {
    double caused = when - attempt.detection_seconds.value_or(0.0);
    for (const record::RankExit& exit : exits) {
      if (cause->global_rank == exit.global_rank && exit.ended > 0.0 && !attempt.detection_seconds)
        caused = exit.ended;
    }
    std::string text = "FIRST CAUSE: " + attempt.verdict;
    if (attempt.detection_seconds)
      text += fmt::format(" (noticed after {:.1f} s)", *attempt.detection_seconds);
    entries.push_back({caused, attempt.number, Mark::kFirstCause, text, Phase::kCause});
    add_collateral(attempt, exits, entries);
  }
  if (!attempt.ended) return;
  const char* words = next == "restart" ? "; starts again" : next == "requeue" ? "; queued again" : "";
  entries.push_back({when, attempt.number, Mark::kNone,
                     cause ? fmt::format("attempt {} is over{}", attempt.number, words)
                           : fmt::format("attempt {} is over: {}{}", attempt.number, attempt.verdict, words),
                     Phase::kOver});
}

void add_preflight(const record::Attempt& attempt, std::vector<TimelineEntry>& entries) {
  if (!attempt.preflight) return;
  const record::PreflightNote& note = *attempt.preflight;
  const auto add = [&](std::string text) {
    entries.push_back(
        {attempt.started + note.seconds, attempt.number, Mark::kNone, std::move(text), Phase::kPreflight});
  };
  std::string text = fmt::format("preflight: {:.1f} s", note.seconds);
  if (note.bytes_per_second) text += ", all-reduce " + rate_text(*note.bytes_per_second);
  if (note.usual_bytes_per_second) text += ", usually " + rate_text(*note.usual_bytes_per_second);
  add(text);
  for (const std::string& warning : note.warnings) add("preflight: " + warning);
  for (const record::ExcludedNode& node : note.excluded)
    add(fmt::format("preflight: node {} is left out: {}", node.node, node.reason));
}

// Returns the size of an attempt that has another number of ranks than the one before it.
std::string size_of(const record::Attempt& attempt) {
  if (attempt.world_size == 0) return "";
  return fmt::format(": {}, {} sequences a step in {} micro-steps of {}", counted(attempt.world_size, "rank"),
                     attempt.batch.global_batch, attempt.batch.gradient_accumulation,
                     attempt.batch.micro_batch);
}

std::string utc_clock(double time) {
  return fmt::format("{}.{:03}Z", base::utc_text(time, "%Y-%m-%dT%H:%M:%S"),
                     static_cast<int>((time - std::floor(time)) * 1000.0));
}

}  // namespace

// Whether a line is one of a step that comes behind the first of its attempt. A run of months has millions of them, and
// parsing them takes far longer than reading them.
bool TrainingNotes::says_nothing(std::string_view line) const {
  constexpr std::string_view kAttempt = "\"attempt\":";
  const auto found = attempts.find(newest);
  if (found == attempts.end() || !found->second.first_step) return false;
  if (line.find("\"event\"") != std::string_view::npos) return false;
  const size_t at = line.rfind("\"attempt\"");
  if (at == std::string_view::npos) return true;
  std::string_view number = line.substr(at);
  if (!number.starts_with(kAttempt)) return false;
  number.remove_prefix(kAttempt.size());
  int attempt = -1;
  const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), attempt);
  return failure == std::errc() && attempt <= newest && end != number.data() + number.size() &&
         (*end == ',' || *end == '}');
}

void TrainingNotes::add(std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view line = base::take_line(lines);
    if (!says_nothing(line)) add_line(line);
  }
}

void TrainingNotes::add_line(std::string_view text) {
  for (const MetricsLine& line : record::parse_metrics(text, newest)) {
    newest = line.attempt;
    Training& training = attempts[line.attempt];
    if (line.event == "first_barrier") training.barrier = line.unix_time;
    if (!line.time) continue;  // of a program that does not say when
    if (!line.event && !training.first_step) {
      training.first_step = line.time;
      training.first = line.step.value_or(0);
    }
    if (line.event != "checkpoint") continue;
    training.last_checkpoint = line.time;
    training.checkpoint = line.step.value_or(0);
    ++training.checkpoints;
  }
}

void EventNotes::add(std::string_view text) {
  for (EventLine& line : record::parse_events(text, newest)) {
    newest = line.attempt;
    const bool is_told = line.event == "attempt_ended" || line.event == "queued_again" ||
                         line.event == "strangers" || line.event == "output_lost" ||
                         line.event == "straggler" || line.event == "taken_over";
    if (!is_told) continue;
    if (lines.size() < kMost) {
      lines.push_back(std::move(line));
    } else {
      ++left_out;
    }
  }
}

std::vector<TimelineEntry> make_timeline(const TimelineSources& sources) {
  const auto& training = sources.training.attempts;
  std::map<int, std::string> nexts;  // what came after an attempt
  std::vector<TimelineEntry> all;
  std::map<int, std::vector<TimelineEntry>> from_events;
  for (const EventLine& event : sources.events.lines) {
    if (event.event == "attempt_ended") nexts[event.attempt] = event.next.value_or("stop");
    if (event.event == "queued_again")
      from_events[event.attempt].push_back({event.time, event.attempt, Mark::kNone,
                                            "queued again: " + event.line.value_or(""), Phase::kQueued});
    if (event.event == "strangers" || event.event == "output_lost")
      from_events[event.attempt].push_back({event.time, event.attempt, Mark::kNone, event.line.value_or("")});
    if (event.event == "taken_over")
      from_events[event.attempt].push_back(
          {event.time, event.attempt, Mark::kNone, "its conductor had died: another took the ranks over"});
    if (event.event != "straggler") continue;
    from_events[event.attempt].push_back(
        {event.time, event.attempt, Mark::kNone,
         fmt::format("rank {} on node {} is slow: busy {:.3f} s a step, the median rank {:.3f} s",
                     event.global_rank.value_or(0), event.node.value_or(""), event.busy_seconds.value_or(0.0),
                     event.median_seconds.value_or(0.0))});
  }
  std::optional<double> fault;
  for (size_t i = 0; i < sources.record.attempts.size(); ++i) {
    const record::Attempt& attempt = sources.record.attempts[i];
    std::vector<TimelineEntry> entries = from_events[attempt.number];
    const bool resized = i > 0 && attempt.world_size != sources.record.attempts[i - 1].world_size;
    entries.push_back({attempt.started, attempt.number, Mark::kNone,
                       fmt::format("attempt {} starts on {}{}", attempt.number, names(attempt.nodes),
                                   resized ? size_of(attempt) : ""),
                       Phase::kStart});
    add_preflight(attempt, entries);
    if (const auto found = training.find(attempt.number); found != training.end())
      add_training(found->second, attempt.number, fault, entries);
    add_end(attempt, i < sources.exits.size() ? sources.exits[i] : std::vector<record::RankExit>{},
            nexts[attempt.number], entries);
    if (!attempt.ended && i + 1 < sources.record.attempts.size())
      entries.push_back(
          {sources.record.attempts[i + 1].started, attempt.number, Mark::kNone,
           fmt::format("attempt {} is over: its conductor ended without a record", attempt.number),
           Phase::kOver});
    // The first cause comes before what it caused, whatever the nodes' clocks say.
    double caused = 0.0;
    for (const TimelineEntry& entry : entries) {
      if (entry.mark == Mark::kFirstCause) caused = entry.time;
    }
    for (TimelineEntry& entry : entries) {
      if (entry.mark == Mark::kCollateral) entry.time = std::max(entry.time, caused);
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const TimelineEntry& left, const TimelineEntry& right) {
                       return std::pair(left.phase, left.time) < std::pair(right.phase, right.time);
                     });
    all.insert(all.end(), entries.begin(), entries.end());
    fault.reset();  // an attempt goes on after the one before it
    if (attempt.first_cause && attempt.ended)
      fault = *attempt.ended - attempt.detection_seconds.value_or(0.0);
  }
  if (sources.events.left_out > 0 && !all.empty())
    all.push_back({all.back().time, all.back().attempt, Mark::kNone,
                   fmt::format("{} more events are in events.jsonl", sources.events.left_out)});
  return all;
}

std::string render_timeline(const std::vector<TimelineEntry>& entries) {
  std::string out;
  for (const TimelineEntry& entry : entries) {
    out += fmt::format("{}  {:>9.1f} s  {}{}\n", utc_clock(entry.time), entry.time - entries.front().time,
                       entry.mark == Mark::kCollateral ? "  " : "", base::visible(entry.text));
  }
  return out;
}

constexpr base::Word<Mark> kMarks[] = {
    {"", Mark::kNone}, {"first_cause", Mark::kFirstCause}, {"collateral", Mark::kCollateral}};

void fields(auto& visit, const TimelineEntry& entry) {
  visit("time", entry.time);
  visit("attempt", entry.attempt);
  visit.choice("mark", entry.mark, kMarks);
  visit("text", entry.text);
}

std::string timeline_json(const std::vector<TimelineEntry>& entries) {
  return base::json_of(entries);
}

}  // namespace shardrun::launcher
