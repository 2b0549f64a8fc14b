#include "runtime/trainer/weights/weight_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/weights/files.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

// Returns a tied model of two blocks.
std::vector<model::BlockLayout> tied_model() {
  return {block_of("embedding", {{"model.embed_tokens.weight", {6, 4}}}),
          block_of("layer 0", {{"model.layers.0.w", {4, 4}}, {"model.layers.0.norm", {4}}})};
}

std::vector<NamedTensor> tied_tensors() {
  return {filled("model.embed_tokens.weight", "F32", {6, 4}), filled("model.layers.0.w", "BF16", {4, 4}),
          filled("model.layers.0.norm", "F32", {4})};
}

std::string refusal(const std::vector<NamedTensor>& tensors, const std::vector<model::BlockLayout>& blocks) {
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  write_file(path, file_bytes(tensors));
  const auto files = WeightFiles::open(path);
  REQUIRE(files);
  const auto checked = files->check(blocks);
  if (checked) return "";
  CHECK(checked.error().code() == base::Code::kInvalid);
  const std::string message = checked.error().message(), begin = path + " does not fit the model: ";
  CHECK(message.substr(0, begin.size()) == begin);
  return message.substr(begin.size());
}

}  // namespace

TEST_CASE("weight files: a file, a folder with one and a folder with an index hold the same tensors") {
  const Folder folder;
  const auto tensors = tied_tensors();
  const std::string single = folder.path() + "/single", sharded = folder.path() + "/sharded";
  std::filesystem::create_directories(single);
  std::filesystem::create_directories(sharded);
  write_file(single + "/model.safetensors", file_bytes(tensors));
  write_file(sharded + "/model-1.safetensors", file_bytes({tensors[0]}));
  write_file(sharded + "/model-2.safetensors", file_bytes({tensors[1], tensors[2]}));
  const std::vector<IndexedTensor> index{{tensors[0].name, "model-1.safetensors"},
                                         {tensors[1].name, "model-2.safetensors"}};
  write_file(sharded + "/model.safetensors.index.json", encode_index(index, 0));

  for (const std::string& path : {single, single + "/model.safetensors", sharded}) {
    CAPTURE(path);
    const auto files = WeightFiles::open(path);
    REQUIRE(files);
    CHECK(files->check(tied_model()));
    const TensorEntry* entry = files->find("model.layers.0.w");
    REQUIRE(entry != nullptr);
    std::vector<std::byte> bytes(2 * 5);
    std::vector<float> values(5);
    REQUIRE(files->read(*entry, 7, bytes));
    to_fp32(bytes, entry->type, values);
    for (int64_t i = 0; i < 5; ++i) CHECK(values[static_cast<size_t>(i)] == element_of(entry->name, 7 + i));
  }
}

TEST_CASE("weight files: missing, extra and misshapen tensors are refused by name") {
  auto tensors = tied_tensors();
  tensors.pop_back();
  CHECK(refusal(tensors, tied_model()) == "model.layers.0.norm not there");
  CHECK(refusal({}, tied_model()) ==
        "model.embed_tokens.weight, model.layers.0.w, model.layers.0.norm not there");

  tensors = tied_tensors();
  tensors[1].shape = {2, 8};
  CHECK(refusal(tensors, tied_model()) == "model.layers.0.w has shape [2, 8], not [4, 4]");

  tensors = tied_tensors();
  tensors.push_back(filled("model.layers.1.w", "F32", {1}));
  tensors.push_back(filled("model.layers.1.bias", "F32", {1}));
  CHECK(refusal(tensors, tied_model()) == "the model has no model.layers.1.bias, model.layers.1.w");

  tensors = tied_tensors();
  tensors[2].dtype = "I64";
  CHECK(refusal(tensors, tied_model()) == "model.layers.0.norm has type I64, not F32, BF16 or F16");
}

TEST_CASE(
    "weight files: a tied head may lie beside its embedding if it is the same, and buffers may lie "
    "anywhere") {
  auto tensors = tied_tensors();
  NamedTensor head = tensors[0];
  head.name = "lm_head.weight";
  tensors.push_back(head);
  tensors.push_back(filled("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}));
  tensors.push_back(filled("bert.embeddings.position_ids", "I64", {1, 3}));
  CHECK(refusal(tensors, tied_model()).empty());

  tensors[3].values[5] += 1.0F;
  CHECK(refusal(tensors, tied_model()) ==
        "the model ties lm_head.weight to model.embed_tokens.weight, but they differ");
}

TEST_CASE("weight files: an untied model and tied files name the setting that differs") {
  auto blocks = tied_model();
  blocks.push_back(block_of("head", {{"lm_head.weight", {6, 4}}}));

  CHECK(refusal(tied_tensors(), blocks) ==
        "lm_head.weight is not there, so it is tied; set [model] tied_embeddings = true");
}

TEST_CASE("weight files: what cannot be opened names its path") {
  const Folder folder;
  write_file(folder.path() + "/broken.safetensors", "this is not the format");

  const auto absent = WeightFiles::open(folder.path() + "/no-such");
  const auto empty = WeightFiles::open(folder.path());
  const auto broken = WeightFiles::open(folder.path() + "/broken.safetensors");
  write_file(folder.path() + "/model.safetensors.index.json",
             encode_index(std::vector<IndexedTensor>{{"a", "gone.safetensors"}}, 1));
  const auto gone = WeightFiles::open(folder.path());

  CHECK(absent.error().code() == base::Code::kNotFound);
  CHECK(empty.error().message() ==
        folder.path() + ": has neither model.safetensors nor model.safetensors.index.json");
  CHECK(broken.error().code() == base::Code::kCorrupt);
  CHECK(broken.error().to_string().find(folder.path() + "/broken.safetensors: ") == 0);
  CHECK(gone.error().to_string().find("gone.safetensors") != std::string::npos);
}

TEST_CASE("weight files: the same tensor in two files is refused") {
  const Folder folder;
  const auto tensors = tied_tensors();
  write_file(folder.path() + "/a.safetensors", file_bytes(tensors));
  write_file(folder.path() + "/b.safetensors", file_bytes({tensors[0]}));
  write_file(folder.path() + "/model.safetensors.index.json",
             encode_index(std::vector<IndexedTensor>{{"x", "a.safetensors"}, {"y", "b.safetensors"}}, 1));

  const auto opened = WeightFiles::open(folder.path());

  REQUIRE(!opened);
  CHECK(opened.error().message() ==
        folder.path() + "/b.safetensors: tensor \"model.embed_tokens.weight\" is in another file too");
}
