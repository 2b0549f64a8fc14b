#include "runtime/tools/export_checkpoint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/weights/hf_config.h"
#include "runtime/trainer/weights/weight_files.h"
#include "tests/unit/weights/files.h"

using namespace shardrun;
using namespace shardrun::weights;
namespace fs = std::filesystem;

namespace {

std::vector<model::BlockLayout> blocks() {
  return {block_of("embedding", {{"table", {10, 6}}}),
          block_of("layer", {{"norm", {6}}, {"w", {6, 6}}, {"bias", {7}}})};
}

// Saves a checkpoint of two ranks and returns its manifest.
checkpoint::Manifest save(const checkpoint::Store& store) {
  checkpoint::Manifest manifest;
  manifest.step = 5;
  manifest.data.sequence_length = 32;
  manifest.model = R"({"model_type":"llama"})";
  manifest.spread = {1, 2, 1};
  const auto layouts = blocks();
  manifest.blocks = checkpoint::describe_blocks({&layouts, 1});
  const auto layout = plan::make_layout(std::vector<int64_t>{layouts[0].elements, layouts[1].elements}, 2);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<float> master(static_cast<size_t>(layout.flat_shard_elements)), moments(master.size());
    for (int b = 0; b < 2; ++b) {
      const auto owned = layout.owned(b, rank);
      for (const model::ParameterInfo& info : layouts[static_cast<size_t>(b)].parameters) {
        for (int64_t i = 0; i < info.elements(); ++i) {
          const int64_t at = info.offset + i;
          if (at < owned.begin || at >= owned.end) continue;
          master[static_cast<size_t>(layout.block(b).shard_offset + at - owned.begin)] =
              element_of(info.name, i);
        }
      }
    }
    const checkpoint::Place place = checkpoint::place_of(manifest.spread, rank);
    REQUIRE(store.write_shard(5, place, layout, {master, moments, moments}));
  }
  REQUIRE(store.publish(manifest));
  return manifest;
}

void check_tensors(const std::string& folder) {
  const auto files = WeightFiles::open(folder);
  REQUIRE(files);
  REQUIRE(files->check(blocks()));
  for (const model::BlockLayout& block : blocks()) {
    for (const model::ParameterInfo& info : block.parameters) {
      const TensorEntry* entry = files->find(info.name);
      std::vector<std::byte> bytes(entry->end - entry->begin);
      std::vector<float> values(static_cast<size_t>(info.elements()));
      REQUIRE(files->read(*entry, 0, bytes));
      to_fp32(bytes, entry->type, values);
      for (int64_t i = 0; i < info.elements(); ++i) {
        REQUIRE(values[static_cast<size_t>(i)] == element_of(info.name, i));
      }
    }
  }
}

}  // namespace

TEST_CASE("export: one file, or several of bounded size with an index, hold every tensor in its type") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  for (const TensorType type : {TensorType::kF32, TensorType::kBf16}) {
    for (const uint64_t limit : {uint64_t{1} << 30, uint64_t{100}}) {
      const std::string output =
          folder.path() + "/out-" + std::to_string(limit) + (type == TensorType::kF32 ? "a" : "b");

      const auto done = tools::export_checkpoint(store, manifest,
                                                 {.output = output, .type = type, .max_file_bytes = limit});

      REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
      CHECK(done->tensors == 4);
      CHECK(done->tensor_bytes == static_cast<uint64_t>(109 * bytes_per_element(type)));
      CHECK(done->files == (limit > 100 ? 1 : type == TensorType::kF32 ? 4 : 2));
      CHECK(fs::exists(output + "/config.json"));
      CHECK(fs::exists(output + "/model.safetensors") == (limit > 100));
      check_tensors(output);
    }
  }
}

TEST_CASE(
    "export: the tokenizer's files, special tokens and a card with the run's facts stand beside the "
    "weights") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  const std::string origin = folder.path() + "/SmolLM2", output = folder.path() + "/out";
  fs::create_directory(origin);
  write_file(origin + "/config.json",
             R"({"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": null, "hidden_size": 9})");
  write_file(origin + "/tokenizer.json", "tokens");
  write_file(origin + "/generation_config.json", "{}");
  write_file(origin + "/model.safetensors", "weights that are not the export's");
  tools::ExportedRun run;
  run.origin = origin + "/";
  run.record.name = "a|b";
  run.record.id = "local-1";
  run.record.world_size = 2;
  run.record.metrics.emplace();
  run.record.metrics->steps = 5;
  run.record.metrics->first_loss = 3.5;
  run.record.metrics->final_loss = 2.25;
  run.record.metrics->validation_loss = 2.0;
  run.job.data.files = {"data/train.tokens"};
  run.job.optimizer.steps = 5;

  const auto done =
      tools::export_checkpoint(store, manifest, {.output = output, .companions = origin, .run = run});

  REQUIRE_MESSAGE(done, (done ? "" : done.error().to_string()));
  CHECK(done->companions == std::vector<std::string>{"tokenizer.json", "generation_config.json"});
  CHECK(read_back(output + "/tokenizer.json") == "tokens");
  CHECK(WeightFiles::open(output).has_value());
  const std::string config = read_back(output + "/config.json"), card = read_back(output + "/README.md");
  const auto has = [](const std::string& text, const char* what) {
    CHECK_MESSAGE(text.find(what) != std::string::npos, text);
  };
  has(config, "\"bos_token_id\": 1");
  CHECK(end_tokens(config).value() == std::vector<int32_t>{2, 7});
  has(config, "\"pad_token_id\": null");
  CHECK(config.find("hidden_size") == std::string::npos);
  has(card, "library_name: transformers");
  has(card, "| began with | SmolLM2 |");
  has(card, "| trained on | train.tokens |");
  has(card, "| steps | 5 of 5 |");
  has(card, "| training loss, nats | 3.5000 at first, 2.2500 at last |");
  has(card, "| validation loss, nats | 2.0000 (perplexity 7.39) |");
  has(card, "| run | a\\|b local-1 |");
}

TEST_CASE("export: a tokenizer alone says which tokens begin and end a text") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  const std::string output = folder.path() + "/out", family = SOURCE_DIR "/tests/unit/data/peers/bpe/smollm2";

  REQUIRE(tools::export_checkpoint(store, manifest, {.output = output, .companions = family}));

  const auto tokenizer = data::open_tokenizer(family + "/tokenizer.json");
  REQUIRE(tokenizer);
  const int32_t end = (*tokenizer)->facts().special.end;
  CHECK(end >= 0);
  CHECK(end_tokens(read_back(output + "/config.json")).value() == std::vector<int32_t>{end});
}

TEST_CASE(
    "export: a card says nothing of losses of another step, and a folder without a tokenizer is refused") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  tools::ExportedRun run;
  run.record.metrics.emplace();
  run.record.metrics->steps = 9;
  run.record.metrics->validation_loss = 2.0;
  const std::string output = folder.path() + "/out";

  REQUIRE(tools::export_checkpoint(store, manifest, {.output = output, .run = run}));
  const auto refused = tools::export_checkpoint(
      store, manifest, {.output = folder.path() + "/other", .companions = folder.path()});

  const std::string card = read_back(output + "/README.md");
  CHECK(card.find("perplexity") == std::string::npos);
  CHECK(card.find("| began with | random weights |") != std::string::npos);
  CHECK(card.find("The tokenizer is not in this folder") != std::string::npos);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().to_string().find("has no tokenizer.json") != std::string::npos);
  CHECK_FALSE(fs::exists(folder.path() + "/other"));
}

TEST_CASE("export: a damaged checkpoint, a request to stop and a taken name leave nothing behind") {
  const Folder folder;
  const checkpoint::Store store(folder.path() + "/checkpoints", 2);
  const auto manifest = save(store);
  const std::string output = folder.path() + "/out", shard = store.path_of(5) + "/shard_00001.bin";
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  };

  const auto stopped =
      tools::export_checkpoint(store, manifest, {.output = output, .stop_requested = [] { return true; }});
  std::string bytes = read_back(shard);
  bytes[300] = static_cast<char>(bytes[300] ^ 1);
  write_file(shard, bytes);
  const auto damaged = tools::export_checkpoint(store, manifest, {.output = output});

  CHECK(stopped.error().code() == base::Code::kCancelled);
  CHECK(damaged.error().code() == base::Code::kCorrupt);
  CHECK(damaged.error().message().find(shard) == 0);
  CHECK(entries() == 1);
  fs::create_directory(output);
  write_file(output + "/precious", "");
  CHECK(tools::export_checkpoint(store, manifest, {.output = output}).error().code() == base::Code::kRefused);
  CHECK(fs::exists(output + "/precious"));
}
