// Loading real weights on a node of four ranks needs little more memory than the shards.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/memory.h"
#include "runtime/trainer/weights/load_weights.h"
#include "runtime/trainer/weights/safetensors.h"
#include "tests/fakes/thread_world.h"

using namespace shardrun;

namespace {

constexpr int kRanks = 4;

// The sizes are uneven: a large embedding, layers of three sizes, a head with a small tensor before the large one.
struct Tensor {
  const char* name;
  std::vector<int64_t> shape;
  int block;
};
const std::vector<Tensor> kTensors = {{"embedding", {32000, 512}, 0},  {"a.weight", {1408, 512}, 1},
                                      {"b.weight", {4096, 512}, 2},    {"b.norm", {512}, 2},
                                      {"c.weight", {12289, 511}, 3},   {"head.norm", {512}, 4},
                                      {"head.weight", {32000, 512}, 4}};

float element(size_t tensor, int64_t index) {
  return static_cast<float>((index * 7 + static_cast<int64_t>(tensor)) % 8191);
}

std::vector<model::BlockLayout> blocks() {
  std::vector<model::BlockLayout> blocks(5);
  for (const Tensor& tensor : kTensors) {
    model::BlockLayout& block = blocks[static_cast<size_t>(tensor.block)];
    block.name = fmt::format("block {}", tensor.block);
    model::ParameterInfo info;
    info.name = tensor.name;
    info.shape = tensor.shape;
    info.offset = block.elements;
    block.elements += info.elements();
    block.parameters.push_back(std::move(info));
  }
  return blocks;
}

void write_weights(const std::string& path) {
  std::vector<weights::TensorEntry> entries;
  for (const Tensor& tensor : kTensors)
    entries.push_back({tensor.name, "F32", weights::TensorType::kF32, tensor.shape, 0, 0});
  std::ofstream out(path, std::ios::binary);
  out << weights::encode_header(entries);
  for (size_t t = 0; t < entries.size(); ++t) {
    std::vector<float> row(static_cast<size_t>(entries[t].shape.back()));
    for (int64_t first = 0; first < entries[t].elements(); first += static_cast<int64_t>(row.size())) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = element(t, first + static_cast<int64_t>(i));
      out.write(reinterpret_cast<const char*>(row.data()),
                static_cast<std::streamsize>(row.size() * sizeof(float)));
    }
  }
}

// Returns "VmRSS" or "VmHWM" of this process, in bytes.
int64_t memory_of_process(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) return std::stoll(line.substr(what.size() + 1)) * 1024;
  }
  return -1;
}

// Loads on all ranks of a node of threads, and returns how far the process's peak rose; -1 when a value is wrong.
int64_t load(const std::string& path) {
  const auto layouts = blocks();
  std::vector<int64_t> elements;
  for (const auto& block : layouts) elements.push_back(block.elements);
  const auto layout = plan::make_layout(elements, kRanks);
  fakes::ThreadWorld world(kRanks);
  std::vector<base::Memory> shards(kRanks);
  const auto floats = [&](size_t rank) {
    return std::span(reinterpret_cast<float*>(shards[rank].data()),
                     static_cast<size_t>(layout.flat_shard_elements));
  };
  for (auto& shard : shards)
    shard = base::Memory::create(layout.flat_shard_elements * static_cast<int64_t>(sizeof(float))).value();
  const int64_t before = memory_of_process("VmRSS");
  world.run([&](int rank, std::span<comm::Communicator* const> channels) {
    const auto at = static_cast<size_t>(rank);
    if (auto done = weights::load_weights(path, layouts, layout, rank, *channels[0], floats(at)); !done)
      fmt::print(stderr, "{}\n", done.error().to_string());
  });
  const int64_t peak = memory_of_process("VmHWM");
  // The head's matrix lies behind its norm; the last rank owns its last element.
  const auto owned = layout.owned(4, kRanks - 1);
  const auto last = static_cast<size_t>(layout.block(4).shard_offset + owned.count() - 1);
  if (floats(0)[1] != element(0, 1) || floats(kRanks - 1)[last] != element(6, 32000 * 512 - 1)) return -1;
  return peak - before;
}

}  // namespace

TEST_CASE("loading weights: a node's peak lies at most one block above its shards") {
  std::string folder = (std::filesystem::temp_directory_path() / "load_memory.XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/model.safetensors", answer = folder + "/answer";
  write_weights(path);
  const pid_t child = ::fork();  // a process whose peak is only the loader's
  REQUIRE(child >= 0);
  if (child == 0) {
    std::ofstream(answer) << load(path);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  int64_t rise = -1;
  std::ifstream(answer) >> rise;
  std::filesystem::remove_all(folder);

  int64_t shards = 0, largest = 0;
  for (const auto& block : blocks()) {
    shards += block.elements * static_cast<int64_t>(sizeof(float));
    largest = std::max(largest, block.elements * static_cast<int64_t>(sizeof(float)));
  }
  MESSAGE("shards " << shards / 1000000 << " MB, largest block " << largest / 1000000 << " MB, peak rose by "
                    << rise / 1000000 << " MB");
  CHECK_GT(rise, shards * 9 / 10);  // it did load
  CHECK_LE(rise, shards + largest);
}
