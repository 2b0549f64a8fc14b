#include "runtime/base/command.h"

#include <doctest/doctest.h>

#include <signal.h>

#include <chrono>
#include <string>

using namespace shardrun;
using std::chrono::seconds;

TEST_CASE(
    "command: one that ends without reading its input is told by its own words, whatever the input's size") {
  const std::string script(1 << 20, 'x');  // more than a pipe holds
  for (int tries = 0; tries < 20; ++tries) {
    const auto output = base::run_command({"sh", "-c", "echo refused >&2; exit 1"}, script, seconds(60));

    REQUIRE_FALSE(output.has_value());
    CHECK(output.error().message() == "sh: refused");
  }
}

TEST_CASE("command: one that reads its input gets all of it") {
  const std::string input(300'000, 'y');

  const auto output = base::run_command({"cat"}, input, seconds(60));

  REQUIRE(output.has_value());
  CHECK(output->out == input);
}

TEST_CASE("command: one that closes its output and stays is ended when its time is over") {
  const auto begin = std::chrono::steady_clock::now();

  const auto output = base::run_command({"sh", "-c", "exec >&- 2>&-; exec sleep 300"}, "", seconds(1));

  REQUIRE_FALSE(output.has_value());
  CHECK(output.error().code() == base::Code::kTimeout);
  CHECK(std::chrono::steady_clock::now() - begin < seconds(200));
}

TEST_CASE("command: one that nobody wants to wait for any longer is ended") {
  const auto begin = std::chrono::steady_clock::now();
  int asked = 0;

  const auto output =
      base::run_command({"sh", "-c", "exec sleep 300"}, "", seconds(200), {}, [&] { return ++asked < 2; });

  REQUIRE_FALSE(output.has_value());
  CHECK(output.error().code() == base::Code::kCancelled);
  CHECK(asked == 2);
  CHECK(std::chrono::steady_clock::now() - begin < seconds(100));
}

TEST_CASE("command: one that has ended is over although somebody else holds its output open") {
  const auto output = base::run_command({"sh", "-c", "sleep 300 & echo $!"}, "", seconds(60));

  REQUIRE(output.has_value());
  const int other = std::stoi(output->out);
  CHECK(::kill(other, SIGKILL) == 0);
}
