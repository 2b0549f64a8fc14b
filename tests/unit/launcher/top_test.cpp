#include "launcher/view/top.h"

#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/format.h>

#include "launcher/view/growing_text.h"
#include "tests/support/folder.h"
#include "tests/support/text.h"

using namespace shardrun;
using namespace shardrun::launcher;
using contract::Beat;
using contract::RankPhase;
using contract::RankSight;
using tests::has;

namespace {

RankSight sight_of(const Beat& beat) {
  return {.global_rank = 3, .node = "n1", .heard = true, .milliseconds_ago = 200, .beat = beat};
}

TopView view_of(int nodes, int ranks_per_node) {
  TopView view;
  view.title = "a job";
  for (int rank = 0; rank < nodes * ranks_per_node; ++rank) {
    TopRank row;
    row.global_rank = rank;
    row.node = fmt::format("n{}", rank / ranks_per_node);
    row.state = "computes";
    row.step = 100;
    row.step_seconds = 0.5;
    row.busy_seconds = 0.25;
    row.memory_bytes = 1 << 20;
    row.last_line = fmt::format("line of {}", rank);
    view.ranks.push_back(row);
  }
  return view;
}

int64_t lines_in(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace

TEST_CASE(
    "top: a trainer's beat says whether it computes, waits, saves or is stopped, and what a step takes") {
  Beat beat{.phase = RankPhase::kStepping,
            .step = 10,
            .state = 'R',
            .step_microseconds = 500'000,
            .busy_microseconds = 2'000'000,
            .resident_bytes = 4096};
  const TopRank rank = describe(sight_of(beat), true, 1);
  CHECK(rank.state == "computes");
  CHECK(rank.step == 10);
  CHECK(*rank.step_seconds == doctest::Approx(0.5));
  CHECK(*rank.busy_seconds == doctest::Approx(0.2));
  CHECK(rank.memory_bytes == 4096);
  CHECK_FALSE(rank.trouble);
  beat.waiting = true;
  CHECK(describe(sight_of(beat), true, 1).state == "waits");
  beat.phase = RankPhase::kSaving;
  CHECK(describe(sight_of(beat), true, 1).state == "saves");
  beat.state = 'T';
  CHECK(describe(sight_of(beat), true, 1).state == "stopped");
  CHECK(describe(sight_of(beat), true, 1).trouble);
}

TEST_CASE("top: the busy time of a step is that of this attempt's steps, and not known before their first") {
  const RankSight sight =
      sight_of({.phase = RankPhase::kStepping, .step = 110, .state = 'R', .busy_microseconds = 2'000'000});
  CHECK(*describe(sight, true, 101).busy_seconds == doctest::Approx(0.2));
  CHECK_FALSE(describe(sight, true, 111).busy_seconds.has_value());
  CHECK_FALSE(describe(sight, true, {}).busy_seconds.has_value());

  const tests::Folder folder;
  const std::string path = folder.file("metrics.jsonl",
                                       "{\"step\":109,\"loss\":1.0,\"attempt\":1}\n"
                                       "{\"event\":\"first_barrier\",\"seconds\":1.0,\"attempt\":11}\n");
  FirstStep first;
  CHECK_FALSE(first.of(path, 11).has_value());
  std::ofstream(path, std::ios::app) << "{\"step\":101,\"loss\":1.0,\"attempt\":11}\n"
                                     << "{\"step\":102,\"loss\":1.0,\"attempt\":11}\n";
  CHECK(first.of(path, 11) == 101);
  CHECK(first.of(path, 1) == 109);
}

TEST_CASE("top: a rank that was never heard, is silent or has ended is told apart") {
  RankSight sight =
      sight_of({.phase = RankPhase::kStepping, .step = 1, .state = 'R', .resident_bytes = 4096});
  sight.milliseconds_ago = 3100;
  CHECK(describe(sight, true, 1).state == "silent 3.1 s");
  CHECK(describe(sight, true, 1).trouble);
  sight.left = true;
  CHECK(describe(sight, true, 1).state == "ended");
  CHECK_FALSE(describe(sight, true, 1).trouble);
  CHECK_FALSE(describe(sight, true, 1).memory_bytes.has_value());
  sight.heard = false;
  CHECK(describe(sight, true, 1).state == "not heard");
}

TEST_CASE("top: a command has no steps, but it is quiet when it writes nothing for long") {
  Beat beat{.state = 'S', .quiet_milliseconds = 100};
  CHECK(describe(sight_of(beat), false, {}).state == "runs");
  CHECK_FALSE(describe(sight_of(beat), false, {}).step.has_value());
  beat.quiet_milliseconds = 83'000;
  CHECK(describe(sight_of(beat), false, {}).state == "quiet 01:23");
}

TEST_CASE("top: plain text has every rank and whole lines") {
  TopView view = view_of(40, 8);
  view.ranks[17].last_line = std::string(300, 'x');
  const std::string text = render_top(view, {});
  CHECK(lines_in(text) == 322);
  CHECK(has(text, std::string(300, 'x')));
  CHECK_FALSE(has(text, "\x1b"));
}

TEST_CASE("top: on a screen each row fits, and ranks that do not fit become nodes, the worst ones first") {
  TopView view = view_of(4, 2);
  view.ranks[5].last_line = "ü" + std::string(200, 'y') + "\x1b[2J";
  const TopSize wide{100, 24, true};
  CHECK(has(render_top(view, wide), "line of 7"));
  const std::string text = render_top(view, wide);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    const auto continued = std::count_if(
        line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; });
    CHECK(static_cast<int64_t>(line.size()) - continued <= 100);
    at = end + 1;
  }

  view.ranks[5].state = "stopped";
  view.ranks[5].trouble = true;
  view.ranks[0].step = 99;
  const std::string nodes = render_top(view, {100, 8, true});
  CHECK(lines_in(nodes) <= 8);
  CHECK(has(nodes, "×2  n0"));
  CHECK(has(nodes, "stopped"));
  CHECK(has(nodes, "2.0 MiB"));
  const std::string few = render_top(view, {100, 5, false});
  CHECK(lines_in(few) == 5);
  CHECK(has(few, "n2"));
  CHECK(has(few, "n0"));
  CHECK_FALSE(has(few, "n3"));
  CHECK(has(few, "… and 2 more nodes"));
}

TEST_CASE(
    "growing text: the end of a long file begins with a whole line, and what comes later is read once") {
  const tests::Folder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
  const std::string path = folder.file("log", text);
  GrowingText files;
  files.skip_to_last(path, 100);
  const std::string tail = files.take_new(path, false);
  CHECK(tail.size() <= 100);
  CHECK(tail.size() > 80);
  CHECK(tail.starts_with("line "));
  CHECK(tail.ends_with("line 999\n"));
  std::ofstream(path, std::ios::app) << "more\nhalf";
  CHECK(files.take_new(path, false) == "more\n");
  CHECK(files.take_new(path, true) == "half");
  CHECK(files.take_new(folder / "missing", false).empty());
}

TEST_CASE("top: the last line of a program that draws a progress bar is the newest state of the bar") {
  const tests::Folder folder;
  CHECK(last_line(folder.file("bar", "begins\n  0%|\r 10%|\r 20%|\r")) == " 20%|");
  CHECK(last_line(folder.file("leading", "begins\n\r 10%|\r 20%|")) == " 10%|");  // its end has not come
  CHECK(last_line(folder.file("blank", "said\r\n\n\n")) == "said");
  CHECK(last_line(folder.file("half", "half")) == "half");
  CHECK(last_line(folder.file("long", std::string(100000, 'x') + "\nend\n")) == "end");
  CHECK(last_line(folder.file("empty", "")).empty());
  CHECK(last_line(folder / "missing").empty());
}
