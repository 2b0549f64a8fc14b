#include "runtime/trainer/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "tests/unit/checkpoint/state.h"

using namespace shardrun;
using namespace shardrun::checkpoint;

namespace {

const Spread kSpread{2, 3, 2};

// Returns `text` without white space (no name in here has any), with one piece replaced and a checksum that holds.
std::string forged(const std::string& text, const std::string& from, const std::string& to) {
  std::string bare;
  for (const char c : text) bare += c == ' ' || c == '\n' ? "" : std::string(1, c);
  const size_t at = bare.find(from);
  REQUIRE(at != std::string::npos);
  bare.replace(at, from.size(), to);
  const size_t crc = bare.find("\"crc32c\":"), end = bare.find(',', crc);
  bare.erase(crc, end + 1 - crc);
  const uint32_t sum = base::crc32c(std::as_bytes(std::span(bare)));
  bare.insert(1, "\"crc32c\":" + std::to_string(sum) + ",");
  return bare;
}

}  // namespace

TEST_CASE("manifest: what was written is read, also the largest seed") {
  const Manifest written = manifest_of(120, kSpread);

  const auto parsed = parse_manifest(to_json(written));

  REQUIRE(parsed);
  CHECK(parsed->step == 120);
  CHECK(parsed->data_position == 960);
  CHECK(parsed->data == written.data);
  CHECK(parsed->model == R"({"layers":1})");
  CHECK(parsed->spread == kSpread);
  REQUIRE(parsed->blocks.size() == 3);
  CHECK(parsed->blocks[1].name == "layer");
  CHECK(parsed->blocks[1].tensors == written.blocks[1].tensors);
  CHECK(to_json(*parsed) == to_json(written));
}

TEST_CASE("manifest: histories of fp8 come back bit for bit, and impossible ones are refused") {
  Manifest written = manifest_of(120, kSpread);
  written.fp8.resize(2);
  for (const float largest : {0.1F, 3e-39F, 0x1.fffffep127F})
    written.fp8[1].note(kernels::Fp8Format::kE5m2, largest);

  const auto parsed = parse_manifest(to_json(written));

  REQUIRE(parsed);
  CHECK(parsed->fp8 == written.fp8);
  CHECK(parse_manifest(to_json(manifest_of(120, kSpread)))->fp8.empty());
  written.fp8[0].scale = -1.0F;
  CHECK_FALSE(parse_manifest(to_json(written)));
}

TEST_CASE("manifest: the kernels of a run on GPUs come back, and a CPU's run has none") {
  Manifest written = manifest_of(120, kSpread);
  written.gpu = {"cudnn 91900", "shardrun products 1\nmade for 130100 on NVIDIA H200\n"};

  const auto parsed = parse_manifest(to_json(written));

  REQUIRE(parsed);
  CHECK(parsed->gpu.attention == written.gpu.attention);
  CHECK(parsed->gpu.products == written.gpu.products);
  CHECK(parse_manifest(to_json(manifest_of(120, kSpread)))->gpu.products.empty());
}

TEST_CASE("manifest: the run that wrote it comes back, and two are other runs only where both are known") {
  Manifest written = manifest_of(120, kSpread);
  CHECK(to_json(written).find("\"run\"") == std::string::npos);
  written.run = {"bert", "17", "0123456789abcdef0123456789abcdef"};

  const auto parsed = parse_manifest(to_json(written));

  REQUIRE(parsed);
  CHECK(parsed->run.name == "bert");
  CHECK(parsed->run.id == "17");
  CHECK_FALSE(parsed->run.is_other(written.run));
  CHECK_FALSE(parsed->run.is_other({}));
  CHECK(parsed->run.is_other({"bert", "17", "0123456789abcdef0123456789abcdee"}));
}

TEST_CASE(
    "manifest: which evaluation was the best comes back bit for bit, and an impossible one is refused") {
  Manifest written = manifest_of(120, kSpread);
  CHECK(to_json(written).find("\"best\"") == std::string::npos);
  written.best = BestLoss{80, 1.0 / 3.0, 120, 2, true};

  const auto parsed = parse_manifest(to_json(written));

  REQUIRE(parsed);
  CHECK(parsed->best == written.best);
  written.best->evaluated_step = 79;
  CHECK_FALSE(parse_manifest(to_json(written)));
}

TEST_CASE("manifest: a flipped bit never changes what is read") {
  const std::string good = to_json(manifest_of(120, {2, 1, 1}));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto parsed = parse_manifest(bad);
    // A flip in white space can leave the object as it was; anything else is refused.
    if (parsed && to_json(*parsed) != good) FAIL(bit);
  }
}

TEST_CASE("manifest: truncations, other JSON and empty text are refused") {
  const std::string good = to_json(manifest_of(120, kSpread));
  for (size_t length = 0; length + 2 < good.size(); length += 3)
    CHECK(!parse_manifest(good.substr(0, length)));
  CHECK(!parse_manifest("[]"));
  CHECK(!parse_manifest("{\"crc32c\":1}"));
  CHECK(!parse_manifest("{\"crc32c\":-1}"));
}

TEST_CASE("manifest: another format version is named, and the checksum still counts") {
  const std::string good = to_json(manifest_of(120, kSpread));

  const auto old = parse_manifest(forged(good, "\"format_version\":2", "\"format_version\":1"));

  REQUIRE(!old);
  CHECK(old.error().code() == base::Code::kUnsupported);
  CHECK(old.error().message() == "checkpoint format version 1, this program reads 2 and 3");
}

TEST_CASE("manifest: slices that leave a hole, overlap backwards or leave the tensor are refused") {
  const std::string good = to_json(manifest_of(120, {2, 1, 1}));
  const std::string begins = "\"begins\":[0,3]";  // those of embedding.table, 7 rows: 3 and 4
  REQUIRE(parse_manifest(forged(good, begins, begins)));

  for (const char* bad : {"[0,4]", "[1,3]", "[0,-1]", "[3,0]", "[0]", "[0,9223372036854775807]"}) {
    CAPTURE(bad);
    const auto parsed = parse_manifest(forged(good, begins, std::string("\"begins\":") + bad));
    REQUIRE(!parsed);
    CHECK(parsed.error().message() == "manifest holds impossible numbers");
  }
  CHECK(!parse_manifest(forged(good, "\"shard_degree\":1", "\"shard_degree\":0")));
  CHECK(!parse_manifest(forged(good, "\"replicas\":1", "\"replicas\":2000000000")));
}

TEST_CASE("place: files are numbered as global ranks are, and replicas share a shard's range out") {
  const Place place = place_of(kSpread, 9);

  CHECK(place.tensor_rank == 1);
  CHECK(place.shard_rank == 1);
  CHECK(place.replica_rank == 1);
  CHECK(place.file() == 9);
  CHECK(Place{kSpread, 1, 1, 0}.part_of({10, 21}) == plan::ElementRange{10, 15});
  CHECK(place.part_of({10, 21}) == plan::ElementRange{15, 21});
  CHECK(place.part_of({4, 4}).count() == 0);
}

TEST_CASE("manifest: a difference in model or tensors is named") {
  const Manifest ours = manifest_of(1, {1, 2, 1});
  Manifest other_model = ours, other_tensor = ours;
  other_model.model = R"({"layers":2})";
  other_tensor.blocks[1].tensors[1].full_shape = {8, 7};

  CHECK(same_tensors(manifest_of(1, kSpread), ours));
  CHECK(same_tensors(other_model, ours).error().message() ==
        R"(it is of another model ({"layers":2}; this job: {"layers":1}))");
  CHECK(same_tensors(other_tensor, ours).error().message() == "its layer has other tensors than this job's");
}
