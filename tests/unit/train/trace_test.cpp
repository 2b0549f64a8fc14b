#include "runtime/trainer/train/trace.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "tests/fakes/thread_world.h"

using namespace shardrun;
using train::Trace;

namespace {

nlohmann::json written(const Trace& trace) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("trace-test-" + std::to_string(::getpid()) + ".json"))
          .string();
  REQUIRE(trace.write(path, 3, "n1"));
  const auto text = base::read_file(path);
  REQUIRE(text);
  auto object = base::parse_json(*text);
  std::filesystem::remove(path);
  return object["traceEvents"];
}

std::vector<std::string> complete_events(const nlohmann::json& events) {
  std::vector<std::string> names;
  for (const auto& event : events) {
    if (event["ph"] == "X")
      names.push_back(std::to_string(event["tid"].get<int>()) + " " + event["name"].get<std::string>());
  }
  return names;
}

}  // namespace

TEST_CASE("trace: only what happens while it is on is in the file, which is JSON and names the rank") {
  Trace trace;
  { const Trace::Scope before(trace, "before"); }
  trace.turn(true);
  trace.add(Trace::Lane::kGather, "all-gather 8 B", 1000, 3500);
  { const Trace::Scope during(trace, "forward layer 1"); }
  trace.turn(false);
  { const Trace::Scope after(trace, "after"); }

  const auto events = written(trace);

  CHECK(complete_events(events) == std::vector<std::string>{"1 all-gather 8 B", "0 forward layer 1"});
  CHECK(events[0]["args"]["name"] == "rank 3 on n1");
  for (const auto& event : events) {
    if (event["name"] != "all-gather 8 B") continue;
    CHECK(event["ts"] == 1.0);
    CHECK(event["dur"] == 2.5);
    CHECK(event["pid"] == 3);
  }
}

TEST_CASE(
    "trace: a collective is in its lane from its start to its wait, and the wait is in the compute lane") {
  fakes::ThreadWorld world(1);
  const auto inner = world.communicator(0, 0);
  Trace trace;
  const auto traced = train::traced(*inner, trace, Trace::Lane::kReduce);
  std::vector<float> values(3, 1.0F);
  trace.turn(true);
  const auto pending = traced->all_reduce(std::span(values));
  REQUIRE(pending);
  REQUIRE(traced->wait(*pending));
  CHECK(complete_events(written(trace)) ==
        std::vector<std::string>{"2 all-reduce 12 B", "0 wait: reduce all-reduce 12 B"});
}

TEST_CASE(
    "trace: collectives of a lane that go on at once lie on tracks of their own, so that no two slices "
    "overlap") {
  Trace trace;
  trace.turn(true);
  trace.add(Trace::Lane::kGather, "a", 0, 100);
  trace.add(Trace::Lane::kGather, "b", 50, 150);
  trace.add(Trace::Lane::kGather, "c", 60, 70);
  trace.add(Trace::Lane::kGather, "d", 100, 120);
  trace.add(Trace::Lane::kReduce, "e", 0, 100);
  const auto events = written(trace);

  CHECK(complete_events(events) == std::vector<std::string>{"1 a", "17 b", "33 c", "1 d", "2 e"});
  std::vector<std::string> names;
  for (const auto& event : events)
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"].get<std::string>());
  CHECK(names == std::vector<std::string>{"compute", "gather", "reduce", "replica", "tensor", "world",
                                          "gather 2", "gather 3"});
}
