#include "runtime/trainer/kernels/packed_moments.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/dispatch.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

using plan::kMomentBlock;

constexpr int64_t kFewBlocks = 64;  // worth a thread

// Numbers of one sign whose upper 16 bits are the same make a cell: from 2^-24 to 1, with all below in the first. None holds more than
// one border, which is what a code is found by: that of the cell's least number, or the next one.
constexpr int32_t kFirstCell = (127 - 24) << 7, kLastCell = 127 << 7, kCells = kLastCell - kFirstCell + 1;

namespace body {

SHARDRUN_INLINE void unpack(float* __restrict out, const uint8_t* __restrict codes,
                            const float* __restrict values, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = values[codes[i]] * scale;
}

// Returns the element of largest magnitude, the first of several.
SHARDRUN_INLINE float largest_of(const float* __restrict x, int64_t count) {
  constexpr int kLanes = 16;
  float high[kLanes] = {}, low[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      high[lane] = x[i + lane] > high[lane] ? x[i + lane] : high[lane];
      low[lane] = x[i + lane] < low[lane] ? x[i + lane] : low[lane];
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    high[0] = x[i] > high[0] ? x[i] : high[0];
    low[0] = x[i] < low[0] ? x[i] : low[0];
  }
  const float highest = *std::max_element(high, high + kLanes), lowest = *std::min_element(low, low + kLanes);
  if (highest != -lowest) return highest > -lowest ? highest : lowest;
  if (highest == 0.0F) return 0.0F;
  return *std::find_if(x, x + count, [&](float one) { return std::abs(one) == highest; });
}

SHARDRUN_INLINE void pack(uint8_t* __restrict codes, const float* __restrict x, float divisor,
                          const float* __restrict borders, const int32_t* __restrict first_codes,
                          int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i] / divisor;
    const auto bits = std::bit_cast<int32_t>(value);
    const int32_t cell = std::clamp((bits >> 16) & 0x7fff, kFirstCell, kLastCell) - kFirstCell;
    const int32_t code = first_codes[cell + (bits < 0 ? kCells : 0)];
    codes[i] = static_cast<uint8_t>(code + (value > borders[code] ? 1 : 0));
  }
}

}  // namespace body

// The map, and how a value finds its number.
class DynamicMap {
 public:
  explicit DynamicMap(bool is_signed) {
    // A decade of an exponent of so many bits has twice as many values as the one below: the middles of equal parts of [0.1, 1].
    constexpr int kDecades = 7;
    std::vector<double> values = {0.0, 1.0};
    for (int decade = 0; decade < kDecades; ++decade) {
      const int parts = 1 << (is_signed ? decade : decade + 1);
      for (int i = 0; i < parts; ++i) {
        const double middle = 0.1 + 0.9 * (i + 0.5) / parts;
        const double value = middle * std::pow(10.0, decade - (kDecades - 1));
        values.push_back(value);
        if (is_signed) values.push_back(-value);
      }
    }
    std::sort(values.begin(), values.end());
    SHARDRUN_CHECK(values.size() == values_.size());
    std::transform(values.begin(), values.end(), values_.begin(),
                   [](double v) { return static_cast<float>(v); });
    for (size_t code = 0; code + 1 < values.size(); ++code)
      borders_[code] = static_cast<float>((values[code] + values[code + 1]) / 2.0);
    borders_.back() = HUGE_VALF;
    for (int32_t cell = 0; cell < kCells; ++cell) {
      const int32_t low = cell == 0 ? 0 : (kFirstCell + cell) << 16,
                    high = (kFirstCell + cell) << 16 | 0xffff;
      first_codes_[cell] = first_code(std::bit_cast<float>(low), std::bit_cast<float>(high));
      first_codes_[kCells + cell] = first_code(-std::bit_cast<float>(high), -std::bit_cast<float>(low));
    }
  }

  std::span<const float> values() const { return values_; }

  void unpack(float* values, const uint8_t* codes, float scale, int64_t count) const {
    vector::dispatch<body::unpack>(values, codes, values_.data(), scale, count);
  }
  // Each element becomes the number of the nearest value; of two as near, of the lower. Returns the scale.
  float pack(uint8_t* codes, const float* values, int64_t count) const {
    const float scale = vector::dispatch<body::largest_of>(values, count);
    const float divisor = scale != 0.0F ? scale : 1.0F;
    vector::dispatch<body::pack>(codes, values, divisor, borders_.data(), first_codes_.data(), count);
    return scale;
  }

 private:
  int32_t first_code(float least, float most) const {
    const auto border = std::lower_bound(borders_.begin(), borders_.end(), least);
    SHARDRUN_CHECK(std::lower_bound(border, borders_.end(), most) - border <= 1);
    return static_cast<int32_t>(border - borders_.begin());
  }

  std::array<float, 256> values_{}, borders_{};    // borders: the middle of a value and the next
  std::array<int32_t, 2 * kCells> first_codes_{};  // of the cells above 0, then of those below
};

const DynamicMap& map_of(MomentMap map) {
  static const DynamicMap both_signs(true), one_sign(false);
  return map == MomentMap::kSigned ? both_signs : one_sign;
}

}  // namespace

std::span<const float> values_of(MomentMap map) {
  return map_of(map).values();
}

void unpack(const PackedMoment& moment, int64_t first, std::span<float> values) {
  const DynamicMap& map = map_of(moment.map);
  const int64_t end = first + std::ssize(values);
  for (int64_t at = first; at < end;) {
    const int64_t block = at / kMomentBlock, count = std::min(end, (block + 1) * kMomentBlock) - at;
    map.unpack(values.data() + (at - first), moment.codes + at, moment.scales[block], count);
    at += count;
  }
}

void pack(const PackedMoment& moment, std::span<const float> values) {
  const DynamicMap& map = map_of(moment.map);
  const int64_t elements = std::ssize(values);
  parallel_for((elements + kMomentBlock - 1) / kMomentBlock, kFewBlocks, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kMomentBlock, count = std::min(kMomentBlock, elements - at);
      moment.scales[block] = map.pack(moment.codes + at, values.data() + at, count);
    }
  });
}

void packed_adamw_step(std::span<float> master, const PackedMoment& moment1, const PackedMoment& moment2,
                       std::span<const float> gradient, std::span<const DecayRange> ranges,
                       const AdamWParameters& parameters) {
  const DynamicMap &map1 = map_of(moment1.map), &map2 = map_of(moment2.map);
  const int64_t elements = std::ssize(master);
  parallel_for((elements + kMomentBlock - 1) / kMomentBlock, kFewBlocks, [&](int64_t begin, int64_t end) {
    std::array<float, kMomentBlock> m1{}, m2{};
    AdamWParameters own = parameters;
    const auto ends_before = [](const DecayRange& range, int64_t at) {
      return range.begin + range.count <= at;
    };
    auto range = std::lower_bound(ranges.begin(), ranges.end(), begin * kMomentBlock, ends_before);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kMomentBlock, last = std::min(elements, first + kMomentBlock);
      while (range != ranges.end() && ends_before(*range, first)) ++range;
      if (range == ranges.end() || range->begin >= last) continue;
      map1.unpack(m1.data(), moment1.codes + first, moment1.scales[block], last - first);
      map2.unpack(m2.data(), moment2.codes + first, moment2.scales[block], last - first);
      for (auto one = range; one != ranges.end() && one->begin < last; ++one) {
        const int64_t from = std::max(first, one->begin), to = std::min(last, one->begin + one->count);
        own.weight_decay = one->weight_decay;
        vector::adamw(master.data() + from, m1.data() + (from - first), m2.data() + (from - first),
                      gradient.data() + from, to - from, own);
      }
      moment1.scales[block] = map1.pack(moment1.codes + first, m1.data(), last - first);
      moment2.scales[block] = map2.pack(moment2.codes + first, m2.data(), last - first);
    }
  });
}

}  // namespace shardrun::kernels
