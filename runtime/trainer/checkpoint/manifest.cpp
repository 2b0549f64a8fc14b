#include "runtime/trainer/checkpoint/manifest.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;
using nlohmann::json;

constexpr int64_t kLargestTensorElements = int64_t{1} << 48;
constexpr int kMostFiles = 1 << 20;

std::string compact(const json& value) {
  return base::json_text(value);
}

uint32_t checksum(const json& object) {
  const std::string text = compact(object);
  return base::crc32c(std::as_bytes(std::span(text)));
}

json to_object(const TensorRecord& tensor) {
  json object = {{"name", tensor.name}, {"shape", tensor.full_shape}};
  if (tensor.split_dimension >= 0) {
    object["split_dimension"] = tensor.split_dimension;
    object["begins"] = tensor.begins;
    object["counts"] = tensor.counts;
  }
  return object;
}

// Throws json::exception when a member is missing or of another type.
TensorRecord tensor_from(const json& object) {
  TensorRecord tensor;
  tensor.name = object.at("name").get<std::string>();
  tensor.full_shape = object.at("shape").get<std::vector<int64_t>>();
  if (object.contains("split_dimension")) {
    tensor.split_dimension = object.at("split_dimension").get<int>();
    tensor.begins = object.at("begins").get<std::vector<int64_t>>();
    tensor.counts = object.at("counts").get<std::vector<int64_t>>();
  }
  return tensor;
}

bool shape_is_possible(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 1 || extent > kLargestTensorElements / elements) return false;
    elements *= extent;
  }
  return true;
}

// Returns whether these are ascending slices inside the tensor that leave no element out.
bool slices_cover(const TensorRecord& tensor, int tensor_parallel) {
  const auto ranks = static_cast<size_t>(tensor_parallel);
  const int dimension = tensor.split_dimension;
  if (dimension < 0) return dimension == -1;
  if (dimension > 1 || static_cast<size_t>(dimension) >= tensor.full_shape.size()) return false;
  if (tensor.begins.size() != ranks || tensor.counts.size() != ranks) return false;
  const int64_t extent = tensor.full_shape[dimension];
  int64_t last_begin = 0, covered = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = tensor.begins[rank], count = tensor.counts[rank];
    if (begin < last_begin || begin > covered || count < 1 || count > extent - begin ||
        begin + count < covered) {
      return false;
    }
    last_begin = begin;
    covered = begin + count;
  }
  return covered == extent;
}

// Writes the scale, then the history. A float is written as the double that it is, whose digits bring back its
// bits.
json to_array(const kernels::Fp8History& history) {
  json numbers = json::array({double{history.scale}});
  for (const float largest : history.largest) numbers.push_back(double{largest});
  return numbers;
}

// Throws json::exception when an entry is missing or of another type.
kernels::Fp8History fp8_from(const json& numbers) {
  kernels::Fp8History history;
  history.scale = numbers.at(0).get<float>();
  for (size_t i = 0; i < history.largest.size(); ++i) history.largest[i] = numbers.at(i + 1).get<float>();
  return history;
}

json to_object(const AdapterIdentity& adapters) {
  json names = json::array();
  for (const spec::LoraMatrix matrix : adapters.lora.matrices) names.push_back(spec::name_of(matrix));
  return {{"rank", adapters.lora.rank},
          {"alpha", adapters.lora.alpha},
          {"rslora", adapters.lora.rslora},
          {"matrices", std::move(names)},
          {"weights", adapters.weights}};
}

// Throws json::exception when a member is missing or of another type.
AdapterIdentity adapters_from(const json& object) {
  AdapterIdentity adapters{
      {object.at("rank").get<int>(), object.at("alpha").get<double>(), object.at("rslora").get<bool>(), {}},
      object.at("weights").get<uint32_t>()};
  for (int matrix = 0; matrix < spec::kLoraMatrices; ++matrix) {
    const auto one = static_cast<spec::LoraMatrix>(matrix);
    for (const json& name : object.at("matrices"))
      if (name == spec::name_of(one)) adapters.lora.matrices.push_back(one);
  }
  return adapters;
}

json to_object(const BestLoss& best) {
  return {{"step", best.step},
          {"loss", best.loss},
          {"evaluated_step", best.evaluated_step},
          {"evaluations_since", best.evaluations_since},
          {"kept", best.kept}};
}

// Throws json::exception when a member is missing or of another type.
BestLoss best_from(const json& object) {
  return {object.at("step").get<int64_t>(), object.at("loss").get<double>(),
          object.at("evaluated_step").get<int64_t>(), object.at("evaluations_since").get<int64_t>(),
          object.at("kept").get<bool>()};
}

bool is_possible(const BestLoss& best) {
  return best.step >= 0 && best.evaluated_step >= best.step && best.evaluations_since >= 0;
}

bool is_possible(const Manifest& manifest) {
  const Spread& spread = manifest.spread;
  const int64_t degrees[] = {spread.tensor_parallel, spread.shard_degree, spread.replicas,
                             spread.pipeline_parallel};
  int64_t files = 1;
  for (const int64_t degree : degrees) {
    if (degree < 1 || degree > kMostFiles) return false;
    files *= degree;
    if (files > kMostFiles) return false;
  }
  if (manifest.step < 0 || manifest.data_position < 0) return false;
  if (manifest.adapters && manifest.adapters->lora.rank < 1) return false;
  if (manifest.best && !is_possible(*manifest.best)) return false;
  for (const kernels::Fp8History& history : manifest.fp8) {
    if (!(history.scale >= 0.0F) || !std::all_of(history.largest.begin(), history.largest.end(),
                                                 [](float largest) { return largest >= 0.0F; }))
      return false;
  }
  for (const BlockInfo& block : manifest.blocks) {
    int64_t elements = 0;
    for (const TensorRecord& tensor : block.tensors) {
      if (!shape_is_possible(tensor.full_shape) || !slices_cover(tensor, spread.tensor_parallel))
        return false;
      elements += shard::whole_slice(tensor.full_shape).elements();
      if (elements > kLargestTensorElements) return false;
    }
    if (elements < 1 && !manifest.adapters) return false;
    if (block.stage < 0 || block.stage >= spread.pipeline_parallel) return false;
  }
  return true;
}

// Throws json::exception when a member is missing or of another type.
Manifest manifest_from(const json& object) {
  Manifest manifest;
  manifest.step = object.at("step").get<int64_t>();
  manifest.epoch = object.value("epoch", 0);  // absent before there were epochs
  manifest.data_position = object.at("data_position").get<int64_t>();
  manifest.data = {object.at("corpus_tokens").get<int64_t>(), object.at("sequence_length").get<int64_t>(),
                   object.at("seed").get<uint64_t>(), object.value("corpus_digest", "")};
  manifest.model = compact(object.at("model"));
  manifest.spread = {object.at("tensor_parallel").get<int>(), object.at("shard_degree").get<int>(),
                     object.at("replicas").get<int>(), object.value("pipeline_parallel", 1)};
  for (const json& entry : object.at("blocks")) {
    BlockInfo block{entry.at("name").get<std::string>(), {}, entry.value("stage", 0)};
    for (const json& tensor : entry.at("tensors")) block.tensors.push_back(tensor_from(tensor));
    manifest.blocks.push_back(std::move(block));
  }
  if (const auto gpu = object.find("gpu"); gpu != object.end())
    manifest.gpu = {gpu->value("attention", ""), gpu->value("products", "")};
  if (const auto run = object.find("run"); run != object.end())
    manifest.run = {run->value("name", ""), run->value("id", ""), run->value("identity", "")};
  if (object.contains("adapters")) manifest.adapters = adapters_from(object.at("adapters"));
  if (object.contains("best")) manifest.best = best_from(object.at("best"));
  if (object.contains("fp8")) {
    for (const json& numbers : object.at("fp8")) manifest.fp8.push_back(fp8_from(numbers));
  }
  return manifest;
}

}  // namespace

bool same_data(const DataIdentity& left, const DataIdentity& right) {
  return left.corpus_tokens == right.corpus_tokens && left.sequence_length == right.sequence_length &&
         left.seed == right.seed &&
         (left.digest.empty() || right.digest.empty() || left.digest == right.digest);
}

int Place::file() const {
  const int data_rank = (stage * spread.replicas + replica_rank) * spread.shard_degree + shard_rank;
  return data_rank * spread.tensor_parallel + tensor_rank;
}

plan::ElementRange Place::part_of(const plan::ElementRange& owned) const {
  const auto cut = [&](int64_t replica) {
    return owned.begin + owned.count() / spread.replicas * replica +
           owned.count() % spread.replicas * replica / spread.replicas;
  };
  return {cut(replica_rank), cut(replica_rank + 1)};
}

Place place_of(const Spread& spread, int file) {
  const int data = file / spread.tensor_parallel;
  const int copy = data / spread.shard_degree;
  return {spread, file % spread.tensor_parallel, data % spread.shard_degree, copy % spread.replicas,
          copy / spread.replicas};
}

shard::TensorSlice TensorRecord::slice(int tensor_rank) const {
  if (split_dimension < 0) return shard::whole_slice(full_shape);
  const auto rank = static_cast<size_t>(tensor_rank);
  return shard::make_slice(full_shape, split_dimension, begins[rank], counts[rank]);
}

shard::TensorSlice TensorRecord::first_holder_slice(int tensor_rank) const {
  if (tensor_rank == 0) return slice(0);
  if (split_dimension < 0) return {};
  const auto rank = static_cast<size_t>(tensor_rank);
  const int64_t covered = begins[rank - 1] + counts[rank - 1];
  return shard::make_slice(full_shape, split_dimension, covered, begins[rank] + counts[rank] - covered);
}

int64_t BlockInfo::elements(int tensor_rank) const {
  int64_t sum = 0;
  for (const TensorRecord& tensor : tensors) sum += tensor.slice(tensor_rank).elements();
  return sum;
}

int64_t BlockInfo::full_elements() const {
  int64_t sum = 0;
  for (const TensorRecord& tensor : tensors) sum += shard::whole_slice(tensor.full_shape).elements();
  return sum;
}

std::vector<BlockInfo> describe_blocks(std::span<const std::vector<model::BlockLayout>> by_tensor_rank) {
  std::vector<BlockInfo> blocks;
  for (size_t index = 0; index < by_tensor_rank[0].size(); ++index) {
    const model::BlockLayout& first = by_tensor_rank[0][index];
    BlockInfo block{first.name, {}};
    for (size_t p = 0; p < first.parameters.size(); ++p) {
      const model::ParameterInfo& info = first.parameters[p];
      TensorRecord tensor{info.name, info.whole_shape(), info.split_dimension, {}, {}};
      for (const auto& blocks_of_rank : by_tensor_rank) {
        if (tensor.split_dimension < 0) break;
        const model::ParameterInfo& slice = blocks_of_rank[index].parameters[p];
        SHARDRUN_CHECK(slice.name == info.name && slice.split_dimension == info.split_dimension);
        tensor.begins.push_back(slice.split_begin);
        tensor.counts.push_back(slice.shape[slice.split_dimension]);
      }
      SHARDRUN_CHECK(slices_cover(tensor, static_cast<int>(by_tensor_rank.size())));
      block.tensors.push_back(std::move(tensor));
    }
    for (size_t rank = 0; rank < by_tensor_rank.size(); ++rank) {
      SHARDRUN_CHECK(block.elements(static_cast<int>(rank)) == by_tensor_rank[rank][index].elements);
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

std::string to_json(const Manifest& manifest) {
  json model = base::parse_json(manifest.model);
  SHARDRUN_CHECK(model.is_object());
  json blocks = json::array();
  const bool is_pipeline = manifest.spread.pipeline_parallel > 1;
  for (const BlockInfo& block : manifest.blocks) {
    json tensors = json::array();
    for (const TensorRecord& tensor : block.tensors) tensors.push_back(to_object(tensor));
    blocks.push_back({{"name", block.name}, {"tensors", std::move(tensors)}});
    if (is_pipeline) blocks.back()["stage"] = block.stage;
  }
  json object = {{"format_version", is_pipeline ? Manifest::kPipelineVersion : Manifest::kFormatVersion},
                 {"step", manifest.step},
                 {"epoch", manifest.epoch},
                 {"data_position", manifest.data_position},
                 {"corpus_tokens", manifest.data.corpus_tokens},
                 {"sequence_length", manifest.data.sequence_length},
                 {"seed", manifest.data.seed},
                 {"model", std::move(model)},
                 {"tensor_parallel", manifest.spread.tensor_parallel},
                 {"shard_degree", manifest.spread.shard_degree},
                 {"replicas", manifest.spread.replicas},
                 {"blocks", std::move(blocks)}};
  if (is_pipeline) object["pipeline_parallel"] = manifest.spread.pipeline_parallel;
  if (!manifest.data.digest.empty()) object["corpus_digest"] = manifest.data.digest;
  for (const kernels::Fp8History& history : manifest.fp8) object["fp8"].push_back(to_array(history));
  if (!manifest.gpu.attention.empty() || !manifest.gpu.products.empty())
    object["gpu"] = {{"attention", manifest.gpu.attention}, {"products", manifest.gpu.products}};
  if (manifest.adapters) object["adapters"] = to_object(*manifest.adapters);
  if (manifest.best) object["best"] = to_object(*manifest.best);
  if (!manifest.run.identity.empty())
    object["run"] = {
        {"name", manifest.run.name}, {"id", manifest.run.id}, {"identity", manifest.run.identity}};
  object["crc32c"] = checksum(object);
  return base::json_text(object, /*indent=*/1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  json object = base::parse_json(text);
  if (!object.is_object() || !object.contains("crc32c") || !object["crc32c"].is_number_unsigned()) {
    return Error(Code::kCorrupt, "not a checkpoint manifest");
  }
  const auto crc = object["crc32c"].get<uint64_t>();
  object.erase("crc32c");
  if (crc != checksum(object)) return Error(Code::kCorrupt, "manifest checksum mismatch");
  // The checksum was right, so only another version can lack a member; the library's exceptions end here.
  try {
    const int version = object.at("format_version").get<int>();
    if (version != Manifest::kFormatVersion && version != Manifest::kPipelineVersion) {
      return Error(Code::kUnsupported,
                   fmt::format("checkpoint format version {}, this program reads {} and {}", version,
                               Manifest::kFormatVersion, Manifest::kPipelineVersion));
    }
    Manifest manifest = manifest_from(object);
    if (!is_possible(manifest)) return Error(Code::kCorrupt, "manifest holds impossible numbers");
    return manifest;
  } catch (const json::exception& failure) {
    return Error(Code::kCorrupt, fmt::format("manifest: {}", failure.what()));
  }
}

Result<void> same_tensors(const Manifest& saved, const Manifest& wanted) {
  const auto differ = [](std::string what) { return Error(Code::kInvalid, std::move(what)); };
  const auto parsed = [](const std::string& text) { return base::parse_json(text); };
  if (parsed(saved.model) != parsed(wanted.model)) {
    return differ(fmt::format("it is of another model ({}; this job: {})", saved.model, wanted.model));
  }
  if (saved.blocks.size() != wanted.blocks.size()) {
    return differ(fmt::format("it has {} blocks, this job {}", saved.blocks.size(), wanted.blocks.size()));
  }
  for (size_t b = 0; b < saved.blocks.size(); ++b) {
    const auto& theirs = saved.blocks[b].tensors;
    const auto& ours = wanted.blocks[b].tensors;
    const auto same = [](const TensorRecord& a, const TensorRecord& c) {
      return a.name == c.name && a.full_shape == c.full_shape;
    };
    if (!std::equal(theirs.begin(), theirs.end(), ours.begin(), ours.end(), same)) {
      return differ(fmt::format("its {} has other tensors than this job's", saved.blocks[b].name));
    }
  }
  return {};
}

Result<void> same_tensors(const Manifest& saved, const std::vector<model::BlockLayout>& whole) {
  Manifest wanted = saved;
  wanted.blocks = describe_blocks({&whole, 1});
  return same_tensors(saved, wanted);
}

}  // namespace shardrun::checkpoint
