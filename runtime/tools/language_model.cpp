#include "runtime/tools/language_model.h"

#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/allowance.h"
#include "runtime/base/io.h"
#include "runtime/tools/adapted_weights.h"
#include "runtime/tools/named_checkpoints.h"
#include "runtime/trainer/generate/decoder.h"
#include "runtime/trainer/weights/hf_config.h"

namespace shardrun::tools {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::DType;
using base::Error;

constexpr uint64_t kLargestConfig = 1 << 20;

Result<void> check_memory(const std::vector<plan::BlockLayout>& layouts, DType dtype) {
  double bytes = 0.0;
  for (const plan::BlockLayout& block : layouts)
    bytes += static_cast<double>(block.elements) * (dtype == DType::kFp32 ? 4.0 : 2.0);
  const double there = memory_bytes();
  if (bytes < there) return {};
  return Error(
      Code::kInvalid,
      fmt::format("the model's weights take {:.1f} GB, and this machine has {:.1f} GB of memory; {}",
                  bytes / 1e9, there / 1e9,
                  dtype == DType::kFp32 ? "try --dtype bf16, or a larger machine" : "take a larger one"));
}

Result<LanguageModel> load_folder(const ModelPlace& place) {
  std::error_code ignored;
  const fs::path path = place.folder;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string folder = (fs::is_directory(path, ignored) ? path : parent).string();
  const std::string config_path = folder + "/config.json";
  ASSIGN_OR_RETURN(const auto json, base::read_file(config_path, kLargestConfig));
  LanguageModel model;
  ASSIGN_OR_RETURN(model.config, llama_of(json, config_path));
  for (const std::string& file : {config_path, folder + "/generation_config.json"}) {
    const auto text = base::read_file(file, kLargestConfig);
    if (!text && text.error().code() == Code::kNotFound) continue;
    RETURN_IF_ERROR(text);
    auto ends = weights::end_tokens(*text);
    if (!ends) return std::move(ends).error().context(file);
    model.ends.insert(model.ends.end(), ends->begin(), ends->end());
  }
  auto layouts = plan::block_layouts(model.config);
  ASSIGN_OR_RETURN(const auto files, weights::WeightFiles::open(place.folder));
  const DType dtype = place.dtype == "auto"   ? generate::dtype_of(files, layouts)
                      : place.dtype == "fp32" ? DType::kFp32
                                              : DType::kBf16;
  RETURN_IF_ERROR(check_memory(layouts, dtype));
  ASSIGN_OR_RETURN(model.weights, generate::read_weights(files, std::move(layouts), dtype));
  return model;
}

Result<LanguageModel> load_step(const checkpoint::Store& store, int64_t step, const ModelPlace& place) {
  ASSIGN_OR_RETURN(const auto manifest, store.read_manifest(step));
  LanguageModel model;
  ASSIGN_OR_RETURN(model.config, llama_of(manifest.model, store.path_of(step) + "/manifest.json"));
  auto layouts = plan::block_layouts(model.config);
  const DType dtype = place.dtype == "bf16" ? DType::kBf16 : DType::kFp32;
  RETURN_IF_ERROR(check_memory(layouts, dtype));
  if (manifest.adapters) {
    ASSIGN_OR_RETURN(auto adapted, AdaptedWeights::open(store, manifest, place.base));
    const auto read = [&](int block, std::span<float> values) { return adapted.read_block(block, values); };
    ASSIGN_OR_RETURN(model.weights, generate::read_weights(read, std::move(layouts), dtype));
    return model;
  }
  ASSIGN_OR_RETURN(model.weights, generate::read_weights(store, manifest, std::move(layouts), dtype));
  return model;
}

Result<LanguageModel> load_checkpoint(const ModelPlace& place) {
  ASSIGN_OR_RETURN(const auto named, find_checkpoints(place.checkpoint));
  return read_newest(named, [&](int64_t step) { return load_step(named.store, step, place); });
}

}  // namespace

Result<void> check_capacity(const LanguageModel& model, int64_t tokens) {
  const double kept =
      static_cast<double>(tokens) * static_cast<double>(generate::Decoder::bytes_per_token(model.config));
  if (kept <= memory_bytes()) return {};
  return Error(Code::kInvalid,
               fmt::format("keys and values of {} tokens take {:.1f} GB, and this machine has {:.1f} GB of "
                           "memory; lower --max-tokens",
                           tokens, kept / 1e9, memory_bytes() / 1e9));
}

double memory_bytes() {
  const auto bytes = base::usable_memory_bytes();
  return bytes ? static_cast<double>(*bytes) : std::numeric_limits<double>::infinity();
}

Result<LanguageModel> load_language_model(const ModelPlace& place) {
  if (place.dtype != "auto" && place.dtype != "fp32" && place.dtype != "bf16")
    return Error(Code::kInvalid, fmt::format("--dtype {}: choose auto, fp32 or bf16", place.dtype));
  if (place.checkpoint.empty() == place.folder.empty())
    return Error(Code::kInvalid, "a checkpoint or a folder is needed; see shardrun generate --help");
  return place.folder.empty() ? load_checkpoint(place) : load_folder(place);
}

}  // namespace shardrun::tools
