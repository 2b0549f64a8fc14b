#include "launcher/view/timeline.h"
#include "runtime/base/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

record::RankExit killed(int rank, double ended) {
  record::RankExit exit;
  exit.global_rank = rank;
  exit.node = "n1";
  exit.ended = ended;
  exit.signal = 9;
  return exit;
}

TimelineSources two_attempts() {
  TimelineSources sources;
  record::Attempt first;
  first.started = 1000.0;
  first.ended = 1030.0;
  first.nodes = {"n1", "n2"};
  first.verdict = "node n2 is lost: no sign of life for 4.0 s";
  first.first_cause = record::FirstCause{"node_lost", "n2", {}, {}, {}};
  first.detection_seconds = 4.0;
  record::Attempt second;
  second.number = 1;
  second.started = 1030.5;
  second.nodes = {"n1", "n3"};
  sources.record.attempts = {first, second};
  sources.training.add(R"({"event":"first_barrier","seconds":0.5,"unix_time":1000.5,"attempt":0})"
                       "\n"
                       R"({"step":1,"loss":2.0,"time":1001.0,"attempt":0})"
                       "\n"
                       R"({"event":"checkpoint","step":10,"path":"/x","time":1010.0,"attempt":0})"
                       "\n"
                       R"({"event":"checkpoint","step":20,"path":"/y","time":1020.0,"attempt":0})"
                       "\n"
                       R"({"step":21,"loss":2.0,"time":1032.0,"attempt":1})"
                       "\n"
                       R"({"step":99,"loss":2.0,"time":1033.0,"attempt":0})"
                       "\n");
  sources.events.add(R"({"time":1030.0,"event":"attempt_ended","attempt":0,"next":"restart"})"
                     "\n");
  sources.exits = {{killed(0, 1029.5), killed(1, 1029.0)}, {}};
  return sources;
}

}  // namespace

TEST_CASE("explain: attempts, steps, checkpoints, the first cause and what it took with it, in order") {
  const auto entries = make_timeline(two_attempts());

  CHECK(render_timeline(entries) ==
        "1970-01-01T00:16:40.000Z        0.0 s  attempt 0 starts on n1 n2\n"
        "1970-01-01T00:16:40.500Z        0.5 s  all ranks have met\n"
        "1970-01-01T00:16:41.000Z        1.0 s  first step: 1\n"
        "1970-01-01T00:17:00.000Z       20.0 s  checkpoint of step 20, the last of 2\n"
        "1970-01-01T00:17:06.000Z       26.0 s  FIRST CAUSE: node n2 is lost: no sign of life for 4.0 s "
        "(noticed "
        "after 4.0 s)\n"
        "1970-01-01T00:17:09.000Z       29.0 s    collateral: ranks 0,1 ended because of it (SIGKILL)\n"
        "1970-01-01T00:17:10.000Z       30.0 s  attempt 0 is over; starts again\n"
        "1970-01-01T00:17:10.500Z       30.5 s  attempt 1 starts on n1 n3\n"
        "1970-01-01T00:17:12.000Z       32.0 s  first step: 21, 6.0 s after the fault\n");
}

TEST_CASE("explain: the first cause comes before what it caused, whatever a node's clock says") {
  TimelineSources sources = two_attempts();
  record::Attempt& attempt = sources.record.attempts[0];
  attempt.detection_seconds.reset();
  attempt.first_cause = record::FirstCause{"signal", "n1", 1, 9, {}};
  sources.exits[0] = {killed(0, 900.0), killed(1, 1029.0)};  // rank 0's clock is slow

  const auto entries = make_timeline(sources);

  size_t cause = 0, collateral = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].mark == TimelineEntry::Mark::kFirstCause) cause = i;
    if (entries[i].mark == TimelineEntry::Mark::kCollateral) collateral = i;
  }
  CHECK(cause < collateral);
}

TEST_CASE("explain: a clock that was set back while the run went on turns nothing round") {
  TimelineSources sources = two_attempts();
  sources.training = {};
  sources.training.add(R"({"event":"first_barrier","seconds":0.5,"unix_time":1000.5,"attempt":0})"
                       "\n"
                       R"({"step":1,"loss":2.0,"time":400.0,"attempt":0})"
                       "\n"
                       R"({"event":"checkpoint","step":10,"path":"/x","time":410.0,"attempt":0})"
                       "\n");
  sources.record.attempts.front().ended = 430.0;

  std::vector<std::string> beginnings;
  for (const TimelineEntry& entry : make_timeline(sources))
    if (entry.attempt == 0) beginnings.push_back(entry.text.substr(0, 9));

  CHECK(beginnings == std::vector<std::string>{"attempt 0", "all ranks", "first ste", "checkpoin",
                                               "FIRST CAU", "collatera", "attempt 0"});
}

TEST_CASE("explain: of a program that does not say when its steps ended, none is told") {
  TimelineSources sources = two_attempts();
  sources.training = {};
  sources.training.add(R"({"step":1,"loss":2.0,"total_steps":9})"
                       "\n"
                       R"({"event":"checkpoint","step":4})"
                       "\n");

  const std::string text = render_timeline(make_timeline(sources));

  CHECK(text.find("first step") == std::string::npos);
  CHECK(text.find("checkpoint of step") == std::string::npos);
  CHECK(text.find("1970-01-01T00:00:00") == std::string::npos);
}

TEST_CASE("explain: a first step is told from the fault of the attempt before it, not from one before that") {
  TimelineSources sources = two_attempts();
  sources.record.attempts[1].ended = 1040.0;  // it was stopped
  record::Attempt third = sources.record.attempts[1];
  third.number = 2;
  third.started = 1200.0;
  sources.record.attempts.push_back(third);
  sources.training.add(R"({"step":30,"loss":2.0,"time":1201.0,"attempt":2})"
                       "\n");

  const std::string text = render_timeline(make_timeline(sources));

  CHECK(text.find("first step: 21, 6.0 s after the fault\n") != std::string::npos);
  CHECK(text.find("first step: 30\n") != std::string::npos);
}

TEST_CASE("explain: JSON marks the first cause") {
  const auto list = base::parse_json(timeline_json(make_timeline(two_attempts())));
  CHECK(list.size() == 9);
  CHECK(list[4]["mark"] == "first_cause");
  CHECK(list[5]["mark"] == "collateral");
}

TEST_CASE("explain: a run without any file but its record has a timeline, too") {
  TimelineSources sources;
  sources.record.attempts.resize(1);
  CHECK(make_timeline(sources).size() == 1);
}

TEST_CASE(
    "explain: an attempt with another number of ranks says what its steps are made of, a requeue what it "
    "avoids") {
  TimelineSources sources = two_attempts();
  sources.record.attempts[0].world_size = 2;
  sources.record.attempts[1].world_size = 1;
  sources.record.attempts[1].batch = {8, 1, 8, 1};
  sources.events.add(R"({"time":1030.2,"event":"queued_again","attempt":0,"line":"without n2"})"
                     "\n");

  const std::string text = render_timeline(make_timeline(sources));

  CHECK(text.find("attempt 0 starts on n1 n2\n") != std::string::npos);
  CHECK(text.find("attempt 1 starts on n1 n3: 1 rank, 8 sequences a step in 8 micro-steps of 1\n") !=
        std::string::npos);
  CHECK(text.find("queued again: without n2\n") != std::string::npos);
}

TEST_CASE("explain: of events without number the first are told, and how many there are more") {
  TimelineSources sources = two_attempts();
  std::string lines;
  for (int i = 0; i < 12'000; ++i)
    lines += R"({"time":1031.0,"event":"strangers","attempt":1,"line":"one more"})"
             "\n";
  sources.events.add(lines);

  const std::string text = render_timeline(make_timeline(sources));

  CHECK(sources.events.lines.size() == EventNotes::kMost);
  CHECK(text.find("2001 more events are in events.jsonl\n") != std::string::npos);
}

TEST_CASE("explain: of a thousand ranks on as many nodes, lines stay short") {
  TimelineSources sources;
  record::Attempt attempt;
  attempt.started = 1000.0;
  attempt.ended = 1010.0;
  attempt.verdict = "rank 7 was killed";
  attempt.first_cause = record::FirstCause{};
  attempt.first_cause->global_rank = 7;
  sources.exits.emplace_back();
  for (int rank = 0; rank < 1000; ++rank) {
    attempt.nodes.push_back("n" + std::to_string(rank));
    sources.exits[0].push_back(killed(rank, 1009.0));
  }
  sources.record.attempts = {attempt};
  const std::string told = render_timeline(make_timeline(sources));
  CHECK(told.find("attempt 0 starts on 1000 nodes: n0 n1 n2 … n999\n") != std::string::npos);
  CHECK(told.find("collateral: ranks 0-6,8-999 ended because of it (SIGKILL)\n") != std::string::npos);
}

TEST_CASE("explain: lines of steps that say nothing new change nothing, whoever wrote them") {
  TrainingNotes notes;
  notes.add(
      "{\"step\":1,\"loss\":2.0,\"time\":1001.0,\"attempt\":0}\n{\"step\":2,\"loss\":2.0,\"time\":1002.0,"
      "\"attempt\":0}\n"
      "{\"step\": 3, \"time\": 1003.0, \"attempt\": "
      "1}\n{\"step\":4,\"time\":1004.0,\"attempt\":10}\n{\"step\":5,\"time\":1005.0}\n"
      "{\"event\":\"checkpoint\",\"step\":5,\"time\":1006.0}\n{\"event\":\"checkpoint\",\"step\":3,\"time\":"
      "1007.0,\"attempt\":1}\n");
  REQUIRE(notes.attempts.size() == 3);
  CHECK(notes.attempts.at(0).first == 1);
  CHECK(notes.attempts.at(1).first == 3);
  CHECK(notes.attempts.at(10).first == 4);
  CHECK(notes.attempts.at(10).checkpoint == 5);
  CHECK(notes.attempts.at(1).checkpoints == 0);  // it had been replaced
}
