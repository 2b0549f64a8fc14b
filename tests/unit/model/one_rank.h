// One rank that trains a model which it owns whole, on batches that follow from counters: what tests/peers/curves.py and
// families.py do with PyTorch.
//
// Thread rule: thread-compatible.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/model/options.h"
#include "runtime/trainer/optim/adamw.h"
#include "runtime/trainer/optim/schedule.h"

namespace shardrun::tests {

inline constexpr int kSteps = 20, kBatch = 4, kLength = 32, kVocab = 199, kMaskToken = kVocab - 1;
inline constexpr size_t kTokens = kBatch * kLength;
inline const optim::ScheduleOptions kSchedule{optim::Schedule::kCosine, 3e-3, 3e-4, 4, kSteps};

inline int32_t draw(uint64_t key, size_t counter, uint64_t limit) {
  return static_cast<int32_t>(base::random_bits(key, counter) % limit);
}

// Returns (kBatch, kLength+1) tokens: each is mostly a fixed function of the one before, else random.
inline std::vector<int32_t> token_chain(int step) {
  std::vector<int32_t> tokens(kBatch * (kLength + 1));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = draw(1000 + static_cast<uint64_t>(step), i, kVocab - 1);
    const bool follows = i % (kLength + 1) != 0 && draw(2000 + static_cast<uint64_t>(step), i, 4) != 0;
    if (follows) tokens[i] = (tokens[i - 1] * 5 + 7) % (kVocab - 1);
  }
  return tokens;
}

struct OwnedBatch {
  std::vector<int32_t> tokens = std::vector<int32_t>(kTokens), targets = tokens, segments, lengths, labels;

  model::Batch view() const {
    model::Batch batch{.tokens = tokens, .targets = targets};
    batch.segments = segments, batch.lengths = lengths, batch.next_sentence = labels;
    const auto predicted = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    batch.loss_scale = 1.0f / static_cast<float>(predicted);
    batch.sequence_scale = 1.0f / kBatch;
    return batch;
  }
};

inline OwnedBatch llama_batch(int step) {
  const std::vector<int32_t> chain = token_chain(step);
  OwnedBatch batch;
  for (size_t i = 0; i < kTokens; ++i) {
    const size_t at = i / kLength * (kLength + 1) + i % kLength;
    batch.tokens[i] = chain[at];
    batch.targets[i] = chain[at + 1];
  }
  return batch;
}

// As masked_pairs() of small_runs.py.
inline OwnedBatch bert_batch(int step) {
  const auto key = static_cast<uint64_t>(step);
  const std::vector<int32_t> chain = token_chain(step);
  OwnedBatch batch;
  std::vector<int32_t> original(kTokens);
  for (size_t i = 0; i < kTokens; ++i) original[i] = chain[i / kLength * (kLength + 1) + i % kLength] % 23;
  for (size_t row = 0; row < kBatch; ++row) {
    batch.labels.push_back(draw(4000 + key, row, 2));
    batch.lengths.push_back(kLength - draw(5000 + key, row, 8));
    if (batch.labels[row] == 0) continue;
    for (size_t t = kLength / 2; t < kLength; ++t) {
      original[row * kLength + t] = original[(row + 1) % kBatch * kLength + t];
    }
  }
  for (size_t i = 0; i < kTokens; ++i) {
    const auto column = static_cast<int32_t>(i % kLength);
    const bool masked = draw(3000 + key, i, 100) < 15 && column < batch.lengths[i / kLength];
    batch.tokens[i] = masked ? kMaskToken : original[i];
    batch.targets[i] = masked ? original[i] : -1;
    batch.segments.push_back(column >= kLength / 2 ? 1 : 0);
  }
  return batch;
}

using Initial = float (*)(const model::ParameterInfo& tensor, uint64_t element);

// Does as runtime/trainer/train/initialize.cpp does with seed 1.
inline float as_trainer(const model::ParameterInfo& tensor, uint64_t element) {
  const uint64_t key = base::random_bits(1, base::hash_name(tensor.name));
  return static_cast<float>(
      tensor.init_stddev == 0.0 ? tensor.init_value : tensor.init_stddev * base::random_normal(key, element));
}

// One rank that owns everything: fp32 master weights, copies in the compute dtype, AdamW with clipping and a schedule.
class OneRank {
 public:
  // `initial`: makes element i of a parameter.
  OneRank(std::unique_ptr<model::Model> model, kernels::DType compute, Initial initial = as_trainer)
      : model_(std::move(model)), compute_(compute), initial_(initial) {
    int64_t elements = 0;
    for (const auto& block : model_->blocks()) {
      begins_.push_back(elements);
      elements += block.elements;
    }
    master_.resize(static_cast<size_t>(elements)), gradient_.resize(master_.size());
    moment1_.resize(master_.size()), moment2_.resize(master_.size()), half_.resize(master_.size());
    std::vector<optim::UpdateRange> ranges;
    for (size_t block = 0; block < begins_.size(); ++block) {
      for (const auto& tensor : model_->blocks()[block].parameters) {
        initialize(tensor, begins_[block] + tensor.offset);
        ranges.push_back({begins_[block] + tensor.offset, tensor.elements(), tensor.weight_decay});
      }
    }
    for (const auto& block : model_->frozen()) {
      std::vector<float>& values = frozen_.emplace_back();
      for (const auto& tensor : block.parameters)
        for (int64_t i = 0; i < tensor.elements(); ++i)
          values.push_back(initial_(tensor, static_cast<uint64_t>(i)));
    }
    adamw_ = std::make_unique<optim::AdamW>(std::move(ranges), optim::AdamWOptions{}, moment1_, moment2_);
  }

  double step(int step, const model::Batch& batch) {
    kernels::fp32_to_bf16(master_, std::span(half_));
    model_->set_batch(batch);
    const auto visits = model_->visits();
    for (int visit = 0; visit < static_cast<int>(visits.size()); ++visit) {
      const int block = visits[static_cast<size_t>(visit)];
      REQUIRE(model_->forward(visit, parameters(block), frozen(block)));
    }
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (int visit = static_cast<int>(visits.size()); visit-- > 0;) {
      const int block = visits[static_cast<size_t>(visit)];
      std::vector<float> part(static_cast<size_t>(elements_of(block)));
      REQUIRE(model_->backward(visit, parameters(block), part, /*accumulate=*/false, frozen(block)));
      float* total = gradient_.data() + begins_[static_cast<size_t>(block)];
      for (size_t i = 0; i < part.size(); ++i) total[i] += part[i];
    }
    const double norm = std::sqrt(optim::sum_of_squares(gradient_));
    adamw_->update(master_, gradient_, optim::clip_scale(norm, 1.0), optim::learning_rate(kSchedule, step),
                   step + 1);
    const model::Loss loss = model_->loss();
    double mean = loss.sum / static_cast<double>(loss.tokens);
    if (loss.sequences > 0) mean += loss.sequence_sum / static_cast<double>(loss.sequences);
    return mean;
  }

  const std::vector<model::BlockLayout>& blocks() const { return model_->blocks(); }
  // The gradient of a parameter in the last step, before it was clipped; empty where there is no such parameter.
  std::span<const float> gradient(const std::string& name) const {
    for (size_t block = 0; block < begins_.size(); ++block) {
      for (const auto& tensor : model_->blocks()[block].parameters) {
        if (tensor.name == name)
          return std::span(gradient_).subspan(static_cast<size_t>(begins_[block] + tensor.offset),
                                              static_cast<size_t>(tensor.elements()));
      }
    }
    return {};
  }

 private:
  int64_t elements_of(int block) const { return model_->blocks()[static_cast<size_t>(block)].elements; }

  void initialize(const model::ParameterInfo& tensor, int64_t begin) {
    for (int64_t i = 0; i < tensor.elements(); ++i)
      master_[static_cast<size_t>(begin + i)] = initial_(tensor, static_cast<uint64_t>(i));
  }

  std::span<const std::byte> parameters(int block) const {
    const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(block)]);
    const auto count = static_cast<size_t>(elements_of(block));
    if (compute_ == kernels::DType::kFp32) return std::as_bytes(std::span(master_).subspan(begin, count));
    return std::as_bytes(std::span(half_).subspan(begin, count));
  }

  // In fp32, as adapters are tested.
  std::span<const std::byte> frozen(int block) const {
    if (frozen_.empty()) return {};
    return std::as_bytes(std::span(frozen_[static_cast<size_t>(block)]));
  }

  std::unique_ptr<model::Model> model_;
  kernels::DType compute_;
  Initial initial_;
  std::vector<int64_t> begins_;
  std::vector<float> master_, gradient_, moment1_, moment2_;
  std::vector<kernels::Bf16> half_;
  std::vector<std::vector<float>> frozen_;  // by block
  std::unique_ptr<optim::AdamW> adamw_;
};

}  // namespace shardrun::tests
