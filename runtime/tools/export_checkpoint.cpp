#include "runtime/tools/export_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/tools/adapted_weights.h"
#include "runtime/tools/companions.h"
#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/weights/gguf_model.h"
#include "runtime/trainer/weights/hf_config.h"

namespace shardrun::tools {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::UniqueFd;

constexpr size_t kPieceElements = size_t{1} << 20;

// One file of the export and the tensors in it, in the order of the checkpoint.
struct OutputFile {
  std::string name;
  std::vector<weights::TensorEntry> tensors;
  uint64_t bytes = 0;
};

// The tensors that are exported, and where they come from: blocks are read from the first to the last.
struct Source {
  std::vector<checkpoint::BlockInfo> blocks;
  std::function<Result<void>(int block, std::span<float> values)> read;
};

Source source_of(const checkpoint::Store& store, const checkpoint::Manifest& manifest) {
  return {manifest.blocks, [&](int block, std::span<float> values) {
            return values.empty() ? Result<void>() : store.read_block(manifest, block, values);
          }};
}

Source source_of(AdaptedWeights& adapted) {
  return {checkpoint::describe_blocks({&adapted.layouts(), 1}),
          [&](int block, std::span<float> values) { return adapted.read_block(block, values); }};
}

std::vector<OutputFile> assign_files(const Source& source, const ExportOptions& options) {
  std::vector<OutputFile> files(1);
  for (const checkpoint::BlockInfo& block : source.blocks) {
    for (const checkpoint::TensorRecord& tensor : block.tensors) {
      weights::TensorEntry entry;
      entry.name = tensor.name;
      entry.type = options.type;
      entry.dtype = options.type == weights::TensorType::kF32 ? "F32" : "BF16";
      entry.shape = tensor.full_shape;
      const auto bytes = static_cast<uint64_t>(entry.elements() * weights::bytes_per_element(entry.type));
      if (!files.back().tensors.empty() && files.back().bytes + bytes > options.max_file_bytes &&
          !options.adapter)  // PEFT reads one file
        files.emplace_back();
      files.back().bytes += bytes;
      files.back().tensors.push_back(std::move(entry));
    }
  }
  if (options.adapter) files.front().name = "adapter_model.safetensors";
  for (size_t i = 0; i < files.size() && !options.adapter; ++i) {
    files[i].name = files.size() == 1 ? "model.safetensors"
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  }
  return files;
}

// Reads a file that may not be there; "" then.
std::string text_of(const std::string& path) {
  auto text = base::read_file(path);
  return text ? std::move(*text) : "";
}

Result<weights::GgufModel> describe_gguf(const checkpoint::Manifest& manifest, const ExportOptions& options) {
  const std::string& beside = options.companions;
  return weights::describe_gguf({.config = manifest.model,
                                 .max_positions = manifest.data.sequence_length,
                                 .type = options.type,
                                 .name = options.run ? options.run->record.name : manifest.run.name,
                                 .tokenizer_json = text_of(beside + "/tokenizer.json"),
                                 .tokenizer_config = text_of(beside + "/tokenizer_config.json"),
                                 .chat_template = text_of(beside + "/chat_template.jinja")});
}

// One file with all tensors under their names there; vectors stay fp32, as llama.cpp computes with them.
Result<std::vector<OutputFile>> gguf_file(const Source& source, const ExportOptions& options,
                                          const weights::GgufModel& gguf) {
  OutputFile file{.name = "model.gguf"};
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    const auto type = shape.size() == 1 ? weights::TensorType::kF32 : options.type;
    file.tensors.push_back({.name = std::move(name), .type = type, .shape = std::move(shape)});
    file.bytes += static_cast<uint64_t>(file.tensors.back().elements() * weights::bytes_per_element(type));
  };
  if (const auto count = static_cast<int64_t>(gguf.rope_factors.size()); count > 0)
    add("rope_freqs.weight", {count});
  for (const checkpoint::BlockInfo& block : source.blocks) {
    for (const checkpoint::TensorRecord& tensor : block.tensors) {
      ASSIGN_OR_RETURN(auto name, weights::gguf_name(tensor.name));
      add(std::move(name), tensor.full_shape);
    }
  }
  return std::vector<OutputFile>{std::move(file)};
}

// Writes tensors one behind the other into the files of an export: safetensors, or the one of a GGUF.
class TensorWriter {
 public:
  TensorWriter(std::string folder, std::vector<OutputFile>& files, const weights::GgufModel* gguf)
      : folder_(std::move(folder)), files_(files), gguf_(gguf) {}

  Result<void> write(std::span<const float> values) {
    if (tensor_ == files_[file_].tensors.size()) {
      RETURN_IF_ERROR(close());
      ++file_;
      tensor_ = 0;
    }
    if (tensor_ == 0) RETURN_IF_ERROR(open());
    const weights::TensorType type = files_[file_].tensors[tensor_++].type;
    for (size_t done = 0; done < values.size(); done += kPieceElements) {
      const auto piece = values.subspan(done, std::min(kPieceElements, values.size() - done));
      bytes_.resize(piece.size() * static_cast<size_t>(weights::bytes_per_element(type)));
      weights::from_fp32(piece, type, bytes_);
      RETURN_IF_ERROR(base::write_all(fd_.get(), bytes_, path_));
    }
    if (gguf_ == nullptr) return {};
    const uint64_t bytes = values.size() * static_cast<uint64_t>(weights::bytes_per_element(type));
    return base::write_all(fd_.get(), std::string(weights::gguf_padding(bytes), '\0'), path_);
  }

  Result<void> close() {
    if (!fd_) return {};
    if (::fsync(fd_.get()) != 0) return base::errno_error(Code::kIo, fmt::format("syncing {}", path_), errno);
    fd_.reset();
    return {};
  }

 private:
  Result<void> open() {
    path_ = folder_ + "/" + files_[file_].name;
    fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd_) return base::errno_error(Code::kIo, path_, errno);
    std::vector<weights::TensorEntry>& tensors = files_[file_].tensors;
    return base::write_all(
        fd_.get(),
        gguf_ != nullptr ? weights::encode_gguf(gguf_->facts, tensors) : weights::encode_header(tensors),
        path_);
  }

  std::string folder_, path_;
  std::vector<OutputFile>& files_;
  const weights::GgufModel* gguf_;
  size_t file_ = 0, tensor_ = 0;
  UniqueFd fd_;
  std::vector<std::byte> bytes_;
};

Result<void> write_tensors(const Source& source, const ExportOptions& options, const std::string& folder,
                           std::vector<OutputFile>& files, const weights::GgufModel* gguf) {
  TensorWriter writer(folder, files, gguf);
  std::vector<float> values, arranged;
  if (gguf != nullptr && !gguf->rope_factors.empty()) RETURN_IF_ERROR(writer.write(gguf->rope_factors));
  for (size_t block = 0; block < source.blocks.size(); ++block) {
    values.resize(source.blocks[block].full_elements());
    RETURN_IF_ERROR(source.read(static_cast<int>(block), values));
    std::span<const float> rest = values;
    for (const checkpoint::TensorRecord& tensor : source.blocks[block].tensors) {
      if (options.stop_requested()) return Error(Code::kCancelled, "stopped on request");
      const auto elements = static_cast<size_t>(shard::whole_slice(tensor.full_shape).elements());
      if (gguf == nullptr) {
        RETURN_IF_ERROR(writer.write(rest.first(elements)));
      } else {
        arranged.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(elements));
        weights::arrange_for_gguf(tensor.name, *gguf, arranged);
        RETURN_IF_ERROR(writer.write(arranged));
      }
      rest = rest.subspan(elements);
    }
  }
  return writer.close();
}

// Returns a config.json with the special tokens of a tokenizer; empty where the folder has none that says them.
std::string special_tokens_in(const std::string& folder) {
  for (const char* name : {"/tokenizer.json", "/tokenizer.model"}) {
    const auto tokenizer = data::open_tokenizer(folder + name);
    if (!tokenizer) continue;
    const data::SpecialTokens special = (*tokenizer)->facts().special;
    const auto id = [](int32_t token) { return token < 0 ? "null" : std::to_string(token); };
    return fmt::format(R"({{"bos_token_id": {}, "eos_token_id": {}, "pad_token_id": {}}})", id(special.begin),
                       id(special.end), id(special.pad));
  }
  return "";
}

// Writes adapter_config.json as PEFT reads it.
Result<void> write_adapter_config(const checkpoint::AdapterIdentity& adapters, const ExportOptions& options,
                                  const std::string& folder) {
  return base::write_file_atomically(folder + "/adapter_config.json",
                                     weights::adapter_config_json(adapters.lora, options.base));
}

// Writes config.json, with the special tokens of the model that training began with, or of its tokenizer.
Result<void> write_config(const checkpoint::Manifest& manifest, const ExportOptions& options,
                          const std::string& folder) {
  std::string origin;
  if (!options.companions.empty()) {
    const auto text = base::read_file(options.companions + "/config.json", /*limit_bytes=*/1 << 20);
    if (!text && text.error().code() != Code::kNotFound) return text.error();
    origin = text ? *text : special_tokens_in(options.companions);
  }
  const char* dtype = options.type == weights::TensorType::kF32 ? "float32" : "bfloat16";
  ASSIGN_OR_RETURN(const auto config,
                   weights::config_json(manifest.model, dtype, manifest.data.sequence_length, origin));
  return base::write_file_atomically(folder + "/config.json", config);
}

// Writes what is neither weights nor config.json. Returns the names of the files that were copied.
Result<std::vector<std::string>> write_companions(const checkpoint::Manifest& manifest, const Source& source,
                                                  const ExportOptions& options, const std::string& folder) {
  std::vector<std::string> companions;
  if (options.gguf) {
    companions.emplace_back("tokenizer.json");  // what of it the file needs is in it
  } else if (!options.companions.empty()) {
    ASSIGN_OR_RETURN(companions, copy_companions(options.companions, folder));
  }
  if (!options.run) return companions;
  CardFacts facts{.step = manifest.step,
                  .dtype = options.type == weights::TensorType::kF32 ? "fp32" : "bf16",
                  .origin = options.run->origin,
                  .companions = companions};
  for (const checkpoint::BlockInfo& block : source.blocks) facts.parameters += block.full_elements();
  const std::string card = model_card(options.run->record, options.run->job, facts);
  RETURN_IF_ERROR(base::write_file_atomically(folder + "/README.md", card));
  return companions;
}

Result<void> write_index(const std::string& folder, const std::vector<OutputFile>& files) {
  if (files.size() == 1) return {};
  std::vector<weights::IndexedTensor> index;
  uint64_t total = 0;
  for (const OutputFile& file : files) {
    for (const weights::TensorEntry& tensor : file.tensors) index.push_back({tensor.name, file.name});
    total += file.bytes;
  }
  return base::write_file_atomically(folder + "/model.safetensors.index.json",
                                     weights::encode_index(index, total));
}

// A folder beside the output that becomes it, or goes away.
class PartialFolder {
 public:
  static Result<PartialFolder> create(const std::string& output) {
    const std::string parent = fs::path(output).parent_path().string();
    if (!parent.empty()) RETURN_IF_ERROR(base::make_directories(parent));
    std::string path = output + ".partial-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return base::errno_error(Code::kIo, path, errno);
    return PartialFolder(path);
  }
  PartialFolder(PartialFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PartialFolder& operator=(PartialFolder&&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  Result<void> become(const std::string& output) {
    std::error_code ignored;
    fs::permissions(path_, fs::perms(0755), ignored);
    RETURN_IF_ERROR(base::sync_folder(path_));
    if (::rename(path_.c_str(), output.c_str()) != 0) return base::errno_error(Code::kIo, output, errno);
    path_.clear();
    return base::sync_folder(fs::path(output).parent_path().string());
  }

 private:
  explicit PartialFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace

Result<ExportSummary> export_checkpoint(const checkpoint::Store& store, const checkpoint::Manifest& manifest,
                                        const ExportOptions& options) {
  std::error_code failure;
  if (fs::exists(options.output, failure) &&
      !(fs::is_directory(options.output, failure) && fs::is_empty(options.output, failure))) {
    return Error(Code::kRefused, fmt::format("{} is there already; name another --output", options.output));
  }
  if (options.adapter && options.gguf)
    return Error(Code::kInvalid, "a GGUF holds a whole model; leave out --adapter, or --gguf");
  if (options.adapter && !manifest.adapters)
    return Error(Code::kInvalid, fmt::format("{} holds a whole model and no adapters; remove --adapter",
                                             store.path_of(manifest.step)));
  std::optional<AdaptedWeights> adapted;
  if (manifest.adapters && !options.adapter) {
    ASSIGN_OR_RETURN(adapted, AdaptedWeights::open(store, manifest, options.base));
  }
  const Source source = adapted ? source_of(*adapted) : source_of(store, manifest);
  ASSIGN_OR_RETURN(auto folder, PartialFolder::create(options.output));
  std::vector<OutputFile> files;
  if (options.gguf) {
    ASSIGN_OR_RETURN(const auto gguf, describe_gguf(manifest, options));
    ASSIGN_OR_RETURN(files, gguf_file(source, options, gguf));
    RETURN_IF_ERROR(write_tensors(source, options, folder.path(), files, &gguf));
  } else {
    files = assign_files(source, options);
    RETURN_IF_ERROR(write_tensors(source, options, folder.path(), files, nullptr));
    RETURN_IF_ERROR(options.adapter ? write_adapter_config(*manifest.adapters, options, folder.path())
                                    : write_config(manifest, options, folder.path()));
  }
  RETURN_IF_ERROR(write_index(folder.path(), files));
  ASSIGN_OR_RETURN(auto companions, write_companions(manifest, source, options, folder.path()));
  RETURN_IF_ERROR(folder.become(options.output));
  ExportSummary summary{manifest.step, 0, 0, static_cast<int>(files.size()), std::move(companions)};
  for (const OutputFile& file : files) {
    summary.tensors += static_cast<int64_t>(file.tensors.size());
    summary.tensor_bytes += file.bytes;
  }
  return summary;
}

}  // namespace shardrun::tools
