#include "runtime/trainer/weights/weight_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardrun::weights {
namespace {

using base::Code;
using base::Error;
using base::UniqueFd;

constexpr uint64_t kLargestIndexBytes = 64 << 20;
constexpr int64_t kCompareElements = 1 << 16;

// A tensor that files may hold beside the one that it is tied to.
struct Tie {
  const char *copy, *original;
};
constexpr Tie kTies[] = {
    {"lm_head.weight", "model.embed_tokens.weight"},
    {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"},
    {"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"},
    {"lm_head.decoder.bias", "lm_head.bias"},
};
constexpr std::string_view kBufferSuffixes[] = {"embeddings.position_ids", "rotary_emb.inv_freq"};

// Returns a text such as "a, b, c and 5 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(names.size(), kShown);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

Result<WeightFiles> WeightFiles::open(const std::string& path) {
  WeightFiles files;
  files.path_ = path;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return base::errno_error(errno == ENOENT ? Code::kNotFound : Code::kIo, path, errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    RETURN_IF_ERROR(files.add_file(path));
    return files;
  }
  const std::string index_path = path + "/model.safetensors.index.json";
  const auto text = base::read_file(index_path, kLargestIndexBytes);
  if (!text && text.error().code() != Code::kNotFound) return text.error();
  if (!text) {
    const std::string single = path + "/model.safetensors";
    if (::access(single.c_str(), F_OK) != 0) {
      return Error(Code::kNotFound,
                   fmt::format("{}: has neither model.safetensors nor model.safetensors.index.json", path));
    }
    RETURN_IF_ERROR(files.add_file(single));
    return files;
  }
  const auto names = parse_index(*text);
  if (!names) return names.error().context(index_path);
  for (const std::string& name : *names) RETURN_IF_ERROR(files.add_file(path + "/" + name));
  return files;
}

Result<void> WeightFiles::add_file(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd fd, base::open_to_read(path));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return base::errno_error(Code::kIo, path, errno);
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  std::vector<std::byte> first(std::min(file_bytes, SafetensorsLimits::kLengthBytes));
  RETURN_IF_ERROR(base::read_exactly(fd.get(), first, 0, path));
  const auto length = header_length(first, file_bytes);
  if (!length) return length.error().context(path);
  std::string header(*length, '\0');
  RETURN_IF_ERROR(base::read_exactly(fd.get(), std::as_writable_bytes(std::span(header)),
                                     SafetensorsLimits::kLengthBytes, path));
  auto entries = parse_header(header, file_bytes);
  if (!entries) return std::move(entries).error().context(path);
  for (TensorEntry& entry : *entries) {
    std::string name = entry.name;
    if (!tensors_.emplace(name, Tensor{std::move(entry), files_.size()}).second) {
      return Error(Code::kCorrupt, fmt::format("{}: tensor \"{}\" is in another file too", path, name));
    }
  }
  files_.push_back({path, std::move(fd)});
  return {};
}

const TensorEntry* WeightFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.entry;
}

Result<void> WeightFiles::check(std::span<const model::BlockLayout> blocks) const {
  std::set<std::string> wanted;
  std::vector<std::string> missing, misshapen;
  for (const model::BlockLayout& block : blocks) {
    for (const model::ParameterInfo& parameter : block.parameters) {
      wanted.insert(parameter.name);
      const TensorEntry* entry = find(parameter.name);
      if (entry == nullptr) {
        missing.push_back(parameter.name);
      } else if (entry->shape != parameter.whole_shape()) {
        misshapen.push_back(fmt::format("{} has shape {}, not {}", parameter.name, shape_text(entry->shape),
                                        shape_text(parameter.whole_shape())));
      } else if (entry->type == TensorType::kOther) {
        misshapen.push_back(
            fmt::format("{} has type {}, not F32, BF16 or F16", parameter.name, entry->dtype));
      }
    }
  }
  const auto refuse = [&](const std::string& what) {
    return Error(Code::kInvalid, fmt::format("{} does not fit the model: {}", path_, what));
  };
  if (missing.size() == 1 && missing.front() == "lm_head.weight") {
    return refuse("lm_head.weight is not there, so it is tied; set [model] tied_embeddings = true");
  }
  if (!missing.empty()) return refuse(fmt::format("{} not there", listed(missing)));
  if (!misshapen.empty()) return refuse(listed(misshapen));
  std::vector<std::string> extra;
  for (const auto& item : tensors_) {
    if (wanted.count(item.first) != 0) continue;
    const bool is_tie = std::any_of(std::begin(kTies), std::end(kTies), [&](const Tie& tie) {
      return item.first == tie.copy && wanted.count(tie.original) != 0;
    });
    const bool is_buffer = std::any_of(std::begin(kBufferSuffixes), std::end(kBufferSuffixes),
                                       [&](std::string_view suffix) { return item.first.ends_with(suffix); });
    if (!is_tie && !is_buffer) extra.push_back(item.first);
  }
  if (!extra.empty()) return refuse(fmt::format("the model has no {}", listed(extra)));
  for (const Tie& tie : kTies) {
    const TensorEntry *copy = find(tie.copy), *original = find(tie.original);
    if (copy == nullptr || original == nullptr || wanted.count(tie.copy) != 0) continue;
    ASSIGN_OR_RETURN(const auto same, same_elements(*copy, *original));
    if (!same) return refuse(fmt::format("the model ties {} to {}, but they differ", tie.copy, tie.original));
  }
  return {};
}

Result<bool> WeightFiles::same_elements(const TensorEntry& a, const TensorEntry& b) const {
  if (a.shape != b.shape || a.type != b.type || a.type == TensorType::kOther) return false;
  const int64_t width = bytes_per_element(a.type), elements = a.elements();
  std::vector<std::byte> first, second;
  for (int64_t done = 0; done < elements; done += kCompareElements) {
    const auto bytes = static_cast<size_t>(std::min(kCompareElements, elements - done) * width);
    first.resize(bytes);
    second.resize(bytes);
    RETURN_IF_ERROR(read(a, done, first));
    RETURN_IF_ERROR(read(b, done, second));
    if (first != second) return false;
  }
  return true;
}

Result<void> WeightFiles::read(const TensorEntry& tensor, int64_t first, std::span<std::byte> out) const {
  const uint64_t offset = tensor.begin + static_cast<uint64_t>(first * bytes_per_element(tensor.type));
  SHARDRUN_CHECK(offset + out.size() <= tensor.end);
  const File& file = files_[tensors_.at(tensor.name).file];
  return base::read_exactly(file.fd.get(), out, offset, file.path);
}

Result<void> WeightFiles::read_block(const model::BlockLayout& block, std::span<float> values,
                                     const Seen& seen) const {
  std::vector<std::byte> bytes;
  for (const model::ParameterInfo& parameter : block.parameters) {
    const TensorEntry& entry = *find(parameter.name);
    bytes.resize(parameter.elements() * bytes_per_element(entry.type));
    RETURN_IF_ERROR(read(entry, 0, bytes));
    if (seen) seen(bytes);
    to_fp32(bytes, entry.type, values.subspan(parameter.offset, parameter.elements()));
  }
  return {};
}

}  // namespace shardrun::weights
