#include "runtime/trainer/optim/packed_adamw.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/kernels/packed_moments.h"

using namespace shardrun;
using kernels::MomentMap;

namespace {

std::vector<float> random_values(uint64_t seed, int64_t count, float size = 1.0F) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(size * static_cast<float>(base::random_normal(seed, static_cast<uint64_t>(i))));
  return values;
}

struct Packed {
  explicit Packed(int64_t elements, MomentMap map = MomentMap::kSigned)
      : codes(elements), scales((elements + 255) / 256), moment{map, codes.data(), scales.data()} {}
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  kernels::PackedMoment moment;
};

}  // namespace

TEST_CASE("8-bit moments: the maps are bitsandbytes' dynamic ones") {
  const auto both = kernels::values_of(MomentMap::kSigned), one = kernels::values_of(MomentMap::kUnsigned);

  REQUIRE(both.size() == 256);
  REQUIRE(one.size() == 256);
  // Of 64 equal parts of [0.1, 1] the last and its middle, and the same of the seventh decade, which has one part.
  CHECK(both[0] == doctest::Approx(-0.99296875));
  CHECK(both[254] == doctest::Approx(0.99296875));
  CHECK(both[255] == 1.0F);
  CHECK(both[127] == 0.0F);
  CHECK(both[128] == doctest::Approx(5.5e-7));
  CHECK(both[126] == doctest::Approx(-5.5e-7));
  CHECK(one[0] == 0.0F);
  CHECK(one[1] == doctest::Approx(3.25e-7));
  CHECK(one[2] == doctest::Approx(7.75e-7));
  CHECK(one[254] == doctest::Approx(0.99648437));
  CHECK(one[255] == 1.0F);
  CHECK(std::is_sorted(both.begin(), both.end()));
  CHECK(std::is_sorted(one.begin(), one.end()));
}

TEST_CASE(
    "8-bit moments: each element becomes the nearest value of its block, and is packed to the same bits "
    "again") {
  for (const MomentMap map : {MomentMap::kSigned, MomentMap::kUnsigned}) {
    for (const float size : {1.0F, 1e-20F, 3e15F}) {
      CAPTURE(size);
      constexpr int64_t kElements = 1000;  // the last block is a part of one
      std::vector<float> values = random_values(7, kElements, size);
      for (int64_t i = 300; i < 400; ++i) values[i] *= 1e-5F;
      if (map == MomentMap::kUnsigned)
        for (float& value : values) value = value * value / size;
      Packed packed(kElements, map), again(kElements, map);
      std::vector<float> unpacked(kElements);
      kernels::pack(packed.moment, values);
      kernels::unpack(packed.moment, 0, unpacked);
      const auto levels = kernels::values_of(map);
      for (int64_t i = 0; i < kElements; ++i) {
        const float scale = packed.scales[i / 256];
        double nearest = INFINITY;
        for (const float level : levels)
          nearest = std::min(nearest, std::abs(double{level} * scale - double{values[i]}));
        CHECK(std::abs(double{unpacked[i]} - values[i]) <= nearest + 1e-6 * std::abs(double{scale}));
      }
      kernels::pack(again.moment, unpacked);
      CHECK(again.codes == packed.codes);
      CHECK(again.scales == packed.scales);
      std::vector<float> middle(300);
      kernels::unpack(packed.moment, 200, middle);
      CHECK(std::equal(middle.begin(), middle.end(), unpacked.begin() + 200));
    }
  }
}

TEST_CASE(
    "8-bit AdamW: a step is AdamW's with moments that are packed behind it, for any number of threads") {
  constexpr int64_t kElements = 70'000;
  const std::vector<optim::UpdateRange> ranges = {
      {0, 100, true}, {100, 3, false}, {200, kElements - 300, true}};
  const optim::AdamWOptions options{};
  std::vector<float> master = random_values(1, kElements), expected = master, moment1(kElements),
                     moment2(kElements);
  optim::AdamW reference(ranges, options, moment1, moment2);
  auto made = optim::PackedAdamW::create(ranges, options, kElements);
  REQUIRE(made);
  std::vector<float> first_bits;
  for (int step = 1; step <= 5; ++step) {
    const std::vector<float> gradient = random_values(static_cast<uint64_t>(10 + step), kElements, 1e-3F);
    // The reference begins each step with what is packed.
    made->read(0, 0, moment1);
    made->read(1, 0, moment2);
    std::vector<float> same = master;
    reference.update(same, gradient, 0.5, 1e-2, step);
    ::omp_set_num_threads(step % 2 == 0 ? 3 : 1);
    made->update(master, gradient, 0.5, 1e-2, step);
    CHECK(master == same);
    for (const int moment : {0, 1}) {
      const std::vector<float>& unpacked = moment == 0 ? moment1 : moment2;
      Packed packed(kElements, moment == 0 ? MomentMap::kSigned : MomentMap::kUnsigned);
      kernels::pack(packed.moment, unpacked);
      std::vector<float> there(kElements), wanted(kElements);
      made->read(moment, 0, there);
      kernels::unpack(packed.moment, 0, wanted);
      CHECK(there == wanted);
    }
  }
  ::omp_set_num_threads(1);
  // What is in no range has no moment and does not move.
  CHECK(master[150] == expected[150]);
  CHECK(master[kElements - 1] == expected[kElements - 1]);
}

TEST_CASE("8-bit AdamW: what is written and read back goes on with the same bits") {
  constexpr int64_t kElements = 2'000;
  const std::vector<optim::UpdateRange> ranges = {{0, kElements, true}};
  auto one = optim::PackedAdamW::create(ranges, {}, kElements),
       other = optim::PackedAdamW::create(ranges, {}, kElements);
  REQUIRE(one);
  REQUIRE(other);
  std::vector<float> master = random_values(1, kElements), moment(kElements);
  for (int step = 1; step <= 3; ++step)
    one->update(master, random_values(static_cast<uint64_t>(step), kElements), 1.0, 1e-2, step);
  for (const int which : {0, 1}) {
    one->read(which, 0, moment);
    other->write(which, moment);
  }
  std::vector<float> copy = master;
  for (int step = 4; step <= 6; ++step) {
    const auto gradient = random_values(static_cast<uint64_t>(step), kElements);
    one->update(master, gradient, 1.0, 1e-2, step);
    other->update(copy, gradient, 1.0, 1e-2, step);
  }
  CHECK(copy == master);
}
