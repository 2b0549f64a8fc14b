// Runs a pretrained BERT or RoBERTa encoder on tokens and writes its last hidden states: our side of tests/peers/encoder.py.
//
//   bert_hidden_states WEIGHTS.safetensors fp32|bf16 LAYERS HIDDEN HEADS FFN VOCAB POSITIONS [roberta] < TOKENS > STATES
//
// WEIGHTS holds fp32 tensors under Hugging Face names, with or without "bert." before them; tensors that the file
// lacks (the heads) are zero. TOKENS: B and T, then for each of B rows its length and T tokens, as text. STATES:
// (B,T,HIDDEN) fp32, raw.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/trainer/kernels/ops.h"
#include "runtime/trainer/model/bert.h"

using namespace shardrun;

namespace {

struct Weights {
  nlohmann::json header;
  std::string data;
};

Weights read_safetensors(const std::string& path) {
  std::string file = base::read_file(path, uint64_t{1} << 32).value();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const size_t data_begin = sizeof(header_bytes) + header_bytes;
  SHARDRUN_CHECK(data_begin <= file.size());
  return {base::parse_json(file.substr(sizeof(header_bytes), header_bytes)), file.substr(data_begin)};
}

// Copies what the file has of one tensor; false when it has none.
bool copy_tensor(const Weights& weights, std::string name, float* to, int64_t elements) {
  constexpr std::string_view kPrefix = "bert.";
  if (!weights.header.contains(name) && name.starts_with(kPrefix)) name = name.substr(kPrefix.size());
  if (!weights.header.contains(name)) return false;
  const auto& tensor = weights.header[name];
  const auto range = tensor["data_offsets"].get<std::array<size_t, 2>>();
  SHARDRUN_CHECK(tensor["dtype"] == "F32" && range[1] <= weights.data.size());
  SHARDRUN_CHECK(range[1] - range[0] == static_cast<size_t>(elements) * sizeof(float));
  std::memcpy(to, weights.data.data() + range[0], range[1] - range[0]);
  return true;
}

std::vector<float> block_parameters(const Weights& weights, const model::BlockLayout& block) {
  std::vector<float> flat(static_cast<size_t>(block.elements));
  for (const auto& tensor : block.parameters) {
    if (!copy_tensor(weights, tensor.name, flat.data() + tensor.offset, tensor.elements())) {
      fmt::print(stderr, "not in the file: {}\n", tensor.name);
    }
  }
  return flat;
}

std::vector<int32_t> read_integers(size_t count) {
  std::vector<int32_t> values(count);
  for (int32_t& value : values) std::cin >> value;
  SHARDRUN_CHECK(std::cin.good() || std::cin.eof());
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  const bool roberta = argc == 10 && std::string_view(argv[9]) == "roberta";
  if (argc != 9 && !roberta) {
    fmt::print(
        stderr,
        "usage: bert_hidden_states WEIGHTS fp32|bf16 LAYERS HIDDEN HEADS FFN VOCAB POSITIONS [roberta]\n");
    return 2;
  }
  const Weights weights = read_safetensors(argv[1]);
  const bool is_fp32 = std::string_view(argv[2]) == "fp32";
  std::array<int, 6> sizes{};
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = std::atoi(argv[i + 3]);
  model::BertConfig config{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
  if (roberta) config.type_vocab = 1, config.norm_epsilon = 1e-5, config.next_sentence = false;

  const std::vector<int32_t> extent = read_integers(2);
  const auto B = static_cast<size_t>(extent[0]), T = static_cast<size_t>(extent[1]);
  std::vector<int32_t> tokens, lengths;
  for (size_t row = 0; row < B; ++row) {
    lengths.push_back(read_integers(1)[0]);
    for (const int32_t token : read_integers(T)) tokens.push_back(token);
  }

  auto bert = model::Bert::create(
                  config, {is_fp32 ? kernels::DType::kFp32 : kernels::DType::kBf16, extent[0], extent[1]})
                  .value();
  const std::vector<int32_t> no_targets(tokens.size(), -1);
  bert->set_batch({.tokens = tokens, .targets = no_targets, .lengths = lengths});
  for (int visit = 0; visit <= config.layers; ++visit) {
    const auto block = static_cast<size_t>(bert->visits()[static_cast<size_t>(visit)]);
    const std::vector<float> wide = block_parameters(weights, bert->blocks()[block]);
    std::vector<kernels::Bf16> narrow(wide.size());
    kernels::fp32_to_bf16(wide, std::span(narrow));
    const auto done =
        bert->forward(visit, is_fp32 ? std::as_bytes(std::span(wide)) : std::as_bytes(std::span(narrow)));
    SHARDRUN_CHECK(done);
  }

  const auto bytes = bert->hidden_states();
  std::vector<float> states(tokens.size() * static_cast<size_t>(config.hidden));
  if (is_fp32) {
    std::memcpy(states.data(), bytes.data(), bytes.size());
  } else {
    kernels::bf16_to_fp32({reinterpret_cast<const kernels::Bf16*>(bytes.data()), states.size()}, states);
  }
  return std::fwrite(states.data(), sizeof(float), states.size(), stdout) == states.size() ? 0 : 1;
}
