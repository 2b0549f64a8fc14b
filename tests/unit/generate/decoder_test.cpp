#include "runtime/trainer/generate/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "runtime/trainer/generate/sampling.h"
#include "runtime/trainer/kernels/ops.h"
#include "tests/unit/model/families.h"
#include "tests/unit/model/one_rank.h"

using namespace shardrun;
using namespace shardrun::tests;
using base::DType;
using generate::Decoder;

namespace {

constexpr size_t kPrompt = 8;

// The weights of families.py, kept in fp32 or bf16; in fp32 with bf16's values where `rounded`.
generate::ModelWeights weights_of(const plan::LlamaConfig& config, DType dtype, bool rounded = false) {
  generate::ModelWeights weights{dtype, plan::block_layouts(config), {}};
  for (const plan::BlockLayout& block : weights.layouts) {
    std::vector<float> values;
    for (const plan::ParameterInfo& tensor : block.parameters)
      for (int64_t i = 0; i < tensor.elements(); ++i)
        values.push_back(weight(tensor, static_cast<uint64_t>(i)));
    std::vector<kernels::Bf16> narrow(values.size());
    kernels::fp32_to_bf16(values, std::span(narrow));
    if (rounded) kernels::bf16_to_fp32(narrow, values);
    if (dtype == DType::kFp32) {
      weights.blocks.push_back({values, {}});
    } else {
      weights.blocks.push_back({{}, narrow});
    }
  }
  return weights;
}

std::unique_ptr<Decoder> decoder_of(const Peer& peer, DType dtype = DType::kFp32, bool rounded = false) {
  const plan::LlamaConfig config = config_of(peer);
  auto made = Decoder::create(config, weights_of(config, dtype, rounded), 40);
  REQUIRE_MESSAGE(made, made.error().to_string());
  return std::move(made).value();
}

std::vector<int32_t> prompt() {
  const std::vector<int32_t> chain = token_chain(0);
  return {chain.begin(), chain.begin() + kPrompt};
}

std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

}  // namespace

TEST_CASE("decoder: the logits behind a prompt are transformers', for every family") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    const Peer& peer = all.at(family);
    const std::vector<float> theirs(peer.logits.begin(), peer.logits.end());
    REQUIRE_EQ(theirs.size(), kVocab);
    CHECK_LT(largest_difference(decoder_of(peer)->feed(prompt()), theirs), 2e-5);
  }
}

TEST_CASE("decoder: 24 tokens follow a prompt as transformers generates them, for every family") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    const Peer& peer = all.at(family);
    REQUIRE_EQ(peer.greedy.size(), 24);
    const auto decoder = decoder_of(peer);
    std::vector<float> logits = copy(decoder->feed(prompt()));
    std::vector<double> tokens;
    while (tokens.size() < peer.greedy.size()) {
      const int32_t token = generate::next_token(logits, {}, 0);
      tokens.push_back(token);
      logits = copy(decoder->feed(std::span(&token, 1)));
    }
    CHECK(tokens == peer.greedy);
  }
}

TEST_CASE("decoder: a prompt in one piece, in two, or token by token gives the same logits") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    const std::vector<int32_t> tokens = prompt();
    const auto whole = decoder_of(all.at(family)), pieces = decoder_of(all.at(family)),
               single = decoder_of(all.at(family));
    const std::vector<float> expected = copy(whole->feed(tokens));

    pieces->feed(std::span(tokens).first(3));
    CHECK_LT(largest_difference(pieces->feed(std::span(tokens).subspan(3)), expected), 1e-5);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) single->feed(std::span(tokens).subspan(i, 1));
    CHECK_LT(largest_difference(single->feed(std::span(tokens).last(1)), expected), 1e-5);
  }
}

TEST_CASE("decoder: weights kept in bf16 give the bits of the same values kept in fp32") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : {"llama-3.1", "qwen-2.5", "qwen-3"}) {
    CAPTURE(family);
    const auto narrow = decoder_of(all.at(family), DType::kBf16),
               wide = decoder_of(all.at(family), DType::kFp32, true);
    CHECK(copy(narrow->feed(prompt())) == copy(wide->feed(prompt())));
    const int32_t token = 17;
    CHECK(copy(narrow->feed(std::span(&token, 1))) == copy(wide->feed(std::span(&token, 1))));
  }
}

TEST_CASE("decoder: gone back, it has forgotten what it read since, for every family") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    const auto decoder = decoder_of(all.at(family));
    const std::vector<int32_t> tokens = prompt(), other(5, 3);
    decoder->feed(tokens);
    const int32_t next = 17;
    const std::vector<float> expected = copy(decoder->feed(std::span(&next, 1)));
    for (const int32_t token : other) decoder->feed(std::span(&token, 1));

    decoder->go_back(static_cast<int64_t>(tokens.size()));
    CHECK(copy(decoder->feed(std::span(&next, 1))) == expected);
    decoder->go_back(0);
    decoder->feed(tokens);
    CHECK(copy(decoder->feed(std::span(&next, 1))) == expected);
  }
}
