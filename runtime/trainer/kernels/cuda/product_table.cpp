#include "runtime/trainer/kernels/cuda/product_table.h"

#include <charconv>

#include "runtime/base/text.h"

namespace shardrun::kernels::cuda {
namespace {

using base::Code;
using base::Error;

constexpr std::string_view kTitle = "shardrun products 1", kMaker = "made for ", kEquals = " = ";

std::string hex(uint64_t word) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, word, 16).ptr;
  return {digits, end};
}

bool parse_words(std::string_view text, ProductAlgorithm& algorithm) {
  const char *at = text.data(), *const end = at + text.size();
  for (size_t i = 0; i < algorithm.words.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ' ')) return false;
    const auto [rest, error] = std::from_chars(at, end, algorithm.words[i], 16);
    if (error != std::errc()) return false;
    at = rest;
  }
  return at == end;
}

}  // namespace

const ProductAlgorithm* ProductTable::find(const std::string& shape) const {
  const auto found = algorithms_.find(shape);
  return found == algorithms_.end() ? nullptr : &found->second;
}

std::string ProductTable::text() const {
  std::string out(kTitle);
  out.append("\n").append(kMaker).append(maker_).append("\n");
  for (const auto& [shape, algorithm] : algorithms_) {
    out.append(shape).append(" =");
    for (const uint64_t word : algorithm.words) out.append(" ").append(hex(word));
    out.append("\n");
  }
  return out;
}

base::Result<void> ProductTable::load(std::string_view text) {
  if (base::take_line(text) != kTitle)
    return Error(Code::kCorrupt, "not a table of products, or of another version");
  std::string_view maker = base::take_line(text);
  if (!maker.starts_with(kMaker))
    return Error(Code::kCorrupt, "a table of products that does not say for what");
  maker.remove_prefix(kMaker.size());
  if (maker != maker_) {
    return Error(Code::kRefused,
                 "the table of products was made for " + std::string(maker) + ", this is " + maker_);
  }
  std::map<std::string, ProductAlgorithm> read;
  while (!text.empty()) {
    const std::string_view line = base::take_line(text);
    const size_t equals = line.find(kEquals);
    ProductAlgorithm algorithm;
    if (equals == std::string_view::npos || !parse_words(line.substr(equals + kEquals.size()), algorithm)) {
      return Error(Code::kCorrupt, "in a table of products: \"" + std::string(line) + "\"");
    }
    read[std::string(line.substr(0, equals))] = algorithm;
  }
  for (const auto& [shape, algorithm] : read) algorithms_[shape] = algorithm;
  return {};
}

}  // namespace shardrun::kernels::cuda
