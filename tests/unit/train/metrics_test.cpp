#include "runtime/trainer/train/metrics.h"
#include "runtime/base/json.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/contract/epoch.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::train;

namespace {

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(base::parse_json(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  CHECK(begin == text.size());
  return lines;
}

struct Folder : tests::Folder {
  record::RunDir run{path()};
};

}  // namespace

TEST_CASE("metrics: every line is one JSON object and the hexadecimal loss is the exact one") {
  const Folder folder;
  const double loss = 2.4137000123456789;
  {
    auto log = MetricsLog::open(folder.run, /*attempt=*/1);
    REQUIRE(log);
    log->first_barrier(0.25);
    log->step({20, loss, 3e-4, 0.5, false}, /*step_seconds=*/0.5, /*tokens_per_step=*/1000,
              /*resident_bytes=*/4096);
    log->validation(20, 1.5, 3.1);
    log->checkpoint(20, "/tmp/a \"quoted\"\nname", 0.25);
    CHECK(log->lines_lost() == 0);
  }
  const auto text = base::read_file(folder.run.metrics_jsonl());
  REQUIRE(text);

  const auto lines = lines_of(*text);

  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["event"] == "first_barrier");
  CHECK(lines[0]["seconds"] == 0.25);
  CHECK(lines[1]["step"] == 20);
  CHECK(lines[1]["tokens_per_second"] == 2000.0);
  CHECK(lines[1]["resident_bytes"] == 4096);
  CHECK(lines[1]["attempt"] == 1);
  CHECK(std::strtod(lines[1]["loss_hex"].get<std::string>().c_str(), nullptr) == loss);
  CHECK(lines[2]["unigram_entropy"] == 3.1);
  CHECK(lines[3]["path"] == "/tmp/a \"quoted\"\nname");
  CHECK(lines[3]["stall_seconds"] == 0.25);
}

TEST_CASE("metrics: a file of TensorBoard names each figure, and a data set's loss by the name of the set") {
  const Folder folder;
  const std::string set = "a set whose name is longer than what a string keeps in itself";
  {
    auto log = MetricsLog::open(folder.run, 0);
    REQUIRE(log);
    REQUIRE(log->add_tensorboard());
    log->step({20, 2.5, 3e-4, 0.5, false}, /*step_seconds=*/0.5, /*tokens_per_step=*/1000,
              /*resident_bytes=*/4096);
    log->evaluation(20, set, 1.5);
  }
  const std::filesystem::directory_iterator files(folder.run.tensorboard());
  const auto text = base::read_file(files->path());
  REQUIRE(text);

  // In a record a tag has the number of its field and its length before it.
  for (const std::string& tag : {std::string("loss/train"), std::string("speed/step_seconds"),
                                 std::string("memory/resident_bytes"), "loss/evaluation/" + set}) {
    CAPTURE(tag);
    CHECK(text->find("\n" + std::string(1, static_cast<char>(tag.size())) + tag) != std::string::npos);
  }
}

TEST_CASE("metrics: a full disk costs lines, counted, and nothing else") {
  const Folder folder;
  std::filesystem::create_symlink("/dev/full", folder.run.metrics_jsonl());
  auto log = MetricsLog::open(folder.run, 0);
  REQUIRE(log);

  log->first_barrier(0.25);
  log->checkpoint(20, "/x", 0.0);

  CHECK(log->lines_lost() == 2);
}

TEST_CASE("metrics: an attempt writes nothing once another has begun") {
  const Folder folder;
  REQUIRE(contract::write_epoch(folder.run, 0));
  auto log = MetricsLog::open(folder.run, 0);
  REQUIRE(log);
  log->checkpoint(10, "/x", 0.0);
  REQUIRE(contract::write_epoch(folder.run, 1));

  log->checkpoint(20, "/x", 0.0);

  CHECK(log->lines_lost() == 1);
  CHECK(lines_of(*base::read_file(folder.run.metrics_jsonl())).size() == 1);
}

TEST_CASE("percentile: nearest rank") {
  const std::vector<double> values{5, 1, 4, 2, 3};

  CHECK(percentile(values, 0.5) == 3);
  CHECK(percentile(values, 0.99) == 5);
  CHECK(percentile(values, 0.0) == 1);
  CHECK(percentile({}, 0.5) == 0);
}

TEST_CASE("progress: a line reads as documented") {
  CHECK(to_string(ProgressLine{20, 300, 2.41370, 2.9e-4, 0.812, 6811.7, 41.2}) ==
        "step 20/300  loss 2.4137  lr 2.90e-04  grad norm 0.81  6,812 tokens/s  eta 00:41");
  CHECK(to_string(ProgressLine{1, 2, 1, 1, 1, 1234567, 3725}) ==
        "step 1/2  loss 1.0000  lr 1.00e+00  grad norm 1.00  1,234,567 tokens/s  eta 1:02:05");
}
