// Tests the table of matrix products of a job (train/products.h), on the emulated GPU alone: its cublasLt has three
// algorithms, which cut the inner dimension into one, two or three parts, so what a table says is seen in the bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "runtime/base/io.h"
#include "runtime/trainer/checkpoint/manifest.h"
#include "tests/emulation/settings.h"
#include "tests/gpu/training.h"

namespace gpu_training {
namespace {

constexpr kernels::DType kBf16 = kernels::DType::kBf16;

Run run_of(int64_t steps, const tests::Folder& cache) {
  Run run{.compute = kBf16, .steps = steps};
  run.products = cache.path();
  return run;
}

std::string file_of(const tests::Folder& cache) {
  const std::filesystem::directory_iterator files(cache.path() + "/products");
  REQUIRE(files != end(files));
  return files->path();
}

std::string text_of(const tests::Folder& cache) {
  return base::read_file(file_of(cache)).value();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Makes a table with all of a run's shapes, each cut into so many parts, as nobody's timing would have it.
void make_table(const tests::Folder& folder, const tests::Folder& cache, int parts) {
  train(folder, run_of(1, cache));
  const std::string text = text_of(cache);
  const std::string table =
      std::regex_replace(text.substr(text.find('\n') + 1), std::regex("(656d756c61746564) [123] "),
                         "$1 " + std::to_string(parts) + " ");
  char seal[32];
  std::snprintf(seal, sizeof seal, "crc32c %08x\n", base::crc32c(std::as_bytes(std::span(table))));
  REQUIRE(base::write_file_atomically(file_of(cache), seal + table));
}

std::vector<double> tail(const std::vector<double>& losses, int64_t from) {
  return {losses.begin() + from, losses.end()};
}

}  // namespace

TEST_CASE(
    "matrix products: rank 0 times them once, all ranks have one table, and the next run begins with it") {
  const tests::Folder folder, cache;
  train::ProductsReport report;
  Run run = run_of(2, cache);
  run.ranks = 2;
  run.report = &report;

  const auto first = train(folder, run);
  CAPTURE(report.summary);
  const std::string table = text_of(cache);
  CHECK_GT(std::count(table.begin(), table.end(), '\n'), 12);
  CHECK(has(report.summary, "timed"));
  CHECK(report.notices.empty());

  CHECK_EQ(train(folder, run), first);
  CHECK(has(report.summary, "of them from " + file_of(cache)));
  CHECK_FALSE(has(report.summary, "timed"));
  CHECK_EQ(text_of(cache), table);
}

TEST_CASE("matrix products: a resumed run takes its checkpoint's table, whatever the cache has") {
  const tests::Folder folder, cache, other_cache, saved;
  make_table(folder, cache, 3);
  make_table(folder, other_cache, 2);
  const auto expected = train(folder, run_of(4, cache));
  CHECK_NE(expected, train(folder, run_of(4, other_cache)));
  train::ProductsReport report;
  Run first = run_of(2, cache), second = run_of(4, other_cache);
  first.checkpoints = second.checkpoints = saved.path();
  second.report = &report;
  const std::string others = text_of(other_cache);

  train(folder, first);
  CHECK_EQ(train(folder, second), tail(expected, 2));

  CHECK(has(report.summary, "of them from the checkpoint"));
  CHECK_FALSE(has(report.summary, "timed"));
  CHECK_EQ(text_of(other_cache), others);
}

TEST_CASE("matrix products: what a run did not time its continuation does not time either") {
  const tests::Folder folder, cache, saved;
  make_table(folder, cache, 3);
  const auto expected = train(folder, {.compute = kBf16, .steps = 4});
  const tests::Folder empty;
  train::ProductsReport report;
  Run first = run_of(2, empty), second = run_of(4, cache);
  first.tunes = false;
  first.checkpoints = second.checkpoints = saved.path();
  second.report = &report;

  train(folder, first);
  CHECK_EQ(train(folder, second), tail(expected, 2));
  CHECK_EQ(report.summary, "0 shapes, 0 of them from the checkpoint");
}

TEST_CASE("matrix products: those that cublasLt has no kernel for are named, with its words") {
  const tests::Folder folder, cache;
  train::ProductsReport report;
  Run run = run_of(1, cache);
  run.report = &report;

  emulation::settings().has_products = false;
  train(folder, run);
  emulation::settings().has_products = true;

  REQUIRE_EQ(report.notices.size(), 1);
  CHECK(has(report.notices[0], "cublasLt has no kernel for "));
  CHECK(has(report.notices[0], "bf16>fp32 NT "));
  CHECK(has(report.notices[0], ": CUBLAS_STATUS_NOT_SUPPORTED"));
}

TEST_CASE("matrix products: a damaged table is named and passed over, and replaced") {
  const tests::Folder folder, cache;
  make_table(folder, cache, 3);
  const std::string good = text_of(cache);
  train::ProductsReport report;
  Run run = run_of(1, cache);
  run.report = &report;
  const size_t middle = good.find("656d756c61746564 3") + 17;
  for (const std::string& bad : {good.substr(0, middle) + "2" + good.substr(middle + 1),
                                 good.substr(0, middle), good.substr(good.find('\n') + 1), std::string()}) {
    REQUIRE(base::write_file_atomically(file_of(cache), bad));
    train(folder, run);
    REQUIRE_EQ(report.notices.size(), 1);
    CHECK(has(report.notices[0], file_of(cache) + " is passed over"));
    CHECK(has(report.summary, "timed"));
    report = {};
    train(folder, run);
    CHECK(report.notices.empty());
  }
}

TEST_CASE("matrix products: a checkpoint's table of another GPU is named, and the cache's is taken") {
  const tests::Folder folder, cache, saved;
  make_table(folder, cache, 3);
  train::ProductsReport report;
  Run first = run_of(1, cache), second = run_of(2, cache);
  first.checkpoints = second.checkpoints = saved.path();
  second.report = &report;
  train(folder, first);
  const std::string path = saved.path() + "/step_00000001/manifest.json";
  auto manifest = checkpoint::parse_manifest(base::read_file(path).value());
  REQUIRE(manifest);
  CHECK(has(manifest->gpu.products, "emulated GPU"));
  manifest->gpu.products = "shardrun products 1\nmade for 130100 on NVIDIA H200\na = 1 2 3 4 5 6 7 8\n";
  REQUIRE(base::write_file_atomically(path, checkpoint::to_json(*manifest)));

  train(folder, second);

  REQUIRE_EQ(report.notices.size(), 1);
  CHECK(has(report.notices[0], "made for 130100 on NVIDIA H200"));
  CHECK(has(report.notices[0], "last bits"));
  CHECK(has(report.summary, file_of(cache)));
}

TEST_CASE("matrix products: the micro-steps in which they are timed leave nothing behind") {
  const tests::Folder folder;
  Run plain{.compute = kBf16, .steps = 3}, sharded = plain, fp8 = plain, offloaded = plain, bert = plain;
  sharded.ranks = 2;
  fp8.fp8 = true;
  offloaded.moments_on_host = offloaded.activations_on_host = true;
  offloaded.layers = 4;
  bert.bert = bert.lamb = true;
  for (Run run : {plain, sharded, fp8, offloaded, bert}) {
    CAPTURE(run.ranks);
    CAPTURE(run.fp8);
    CAPTURE(run.bert);
    const tests::Folder cache;
    run.products = cache.path();
    const auto timed = train(folder, run);  // it keeps the table, too
    run.tunes = false;                      // so it reads the table, and begins at once
    CHECK_EQ(train(folder, run), timed);
  }
}

}  // namespace gpu_training
