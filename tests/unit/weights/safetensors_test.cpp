#include "runtime/trainer/weights/safetensors.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/weights/files.h"

using namespace shardrun;
using namespace shardrun::weights;

namespace {

std::string refusal(const std::string& json, uint64_t data_bytes) {
  const auto parsed = parse_header(json, 8 + json.size() + data_bytes);
  if (parsed) return "";
  CHECK(parsed.error().code() == base::Code::kCorrupt);
  return parsed.error().message();
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

}  // namespace

TEST_CASE("safetensors: the worked example of the format has its element at byte 62") {
  const std::string json = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

  const auto parsed = parse_header(json, 66);

  REQUIRE(parsed);
  REQUIRE(parsed->size() == 1);
  CHECK(json.size() == 54);
  CHECK((*parsed)[0].name == "a");
  CHECK((*parsed)[0].begin == 62);
  CHECK((*parsed)[0].end == 66);
}

TEST_CASE(
    "safetensors: tensors come in the order of their data, with metadata left out and empty ones let in") {
  const std::string json = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("z", "BF16", "[2,3]", "[0,12]") +
                           "," + entry("b", "F16", "[]", "[12,14]") + "," +
                           entry("a", "F32", "[0,7]", "[12,12]") + "," +
                           entry("c", "F9_NEW", "[4]", "[14,20]") + "}";

  const auto parsed = parse_header(json, 8 + json.size() + 20);

  REQUIRE(parsed);
  REQUIRE(parsed->size() == 4);
  CHECK((*parsed)[0].name == "z");
  CHECK((*parsed)[1].name == "a");
  CHECK((*parsed)[2].name == "b");
  CHECK((*parsed)[2].elements() == 1);
  CHECK((*parsed)[3].type == TensorType::kOther);
  CHECK((*parsed)[3].dtype == "F9_NEW");
}

TEST_CASE("safetensors: what does not add up is refused, and the tensor named") {
  CHECK(refusal("[]", 0) == "the header is no JSON object");
  CHECK(refusal("{\"a\":", 0) == "the header is no JSON object");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]") + "}", 8) ==
        "\"a\" appears twice");
  CHECK(refusal("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}",
                12) == "tensor \"b\" overlaps another");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}",
                12) == "tensor \"b\" leaves a gap before it");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0,4]") + "}", 8).find("its tensors end at byte") == 0);
  CHECK(refusal("{" + entry("a", "F32", "[2]", "[0,4]") + "}", 4) ==
        "tensor \"a\": has a shape that does not give its bytes");
  CHECK(refusal("{" + entry("a", "BF16", "[1]", "[0,4]") + "}", 4) ==
        "tensor \"a\": has a shape that does not give its bytes");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0,8]") + "}", 4) ==
        "tensor \"a\": lies outside of the file");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4) ==
        "tensor \"a\": lies outside of the file");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0,18446744073709551615]") + "}", 4) ==
        "tensor \"a\": lies outside of the file");
  CHECK(refusal("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0) ==
        "tensor \"a\": has no possible shape");
  CHECK(refusal("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4) == "tensor \"a\": has no possible shape");
  CHECK(refusal("{" + entry("a", "F32", "[1.5]", "[0,4]") + "}", 4) == "tensor \"a\": has no possible shape");
  CHECK(refusal("{" + entry("a", "F32", "[1]", "[0]") + "}", 4) == "tensor \"a\": has no data_offsets");
  CHECK(refusal("{\"a\":7}", 0) == "tensor \"a\": has no dtype");
}

TEST_CASE("safetensors: a length beyond the file or the limit is refused before anything is read") {
  const auto length_of = [](uint64_t length, uint64_t file_bytes) {
    std::vector<std::byte> bytes(8);
    std::memcpy(bytes.data(), &length, 8);
    return header_length(bytes, file_bytes);
  };
  CHECK(*length_of(54, 66) == 54);
  CHECK(!length_of(59, 66));
  CHECK(!length_of(100'000'001, uint64_t{1} << 40));
  CHECK(!length_of(std::numeric_limits<uint64_t>::max(), 66));
  CHECK(!header_length(std::vector<std::byte>(7), 7));
}

TEST_CASE("safetensors: an encoded header is parsed, and its data begins at a multiple of 8") {
  std::vector<TensorEntry> tensors(2);
  tensors[0] = {"w", "BF16", TensorType::kBf16, {3, 5}, 0, 0};
  tensors[1] = {"b", "BF16", TensorType::kBf16, {3}, 0, 0};

  const std::string bytes = encode_header(tensors);
  const auto parsed = parse_header(bytes.substr(8), bytes.size() + 36);

  CHECK(bytes.size() % 8 == 0);
  REQUIRE(parsed);
  REQUIRE(parsed->size() == 2);
  CHECK((*parsed)[0].name == "w");
  CHECK((*parsed)[0].begin == bytes.size());
  CHECK((*parsed)[0].begin == tensors[0].begin);
  CHECK((*parsed)[1].end == tensors[1].end);
  CHECK((*parsed)[1].shape == std::vector<int64_t>{3});
}

TEST_CASE("safetensors: an index names each file once, and none outside of its folder") {
  const std::vector<IndexedTensor> tensors{
      {"a", "model-2.safetensors"}, {"b", "model-1.safetensors"}, {"c", "model-2.safetensors"}};

  const auto files = parse_index(encode_index(tensors, 12));

  REQUIRE(files);
  CHECK(*files == std::vector<std::string>{"model-1.safetensors", "model-2.safetensors"});
  for (const char* bad : {"../x", "a/b", "", ".hidden", "/etc/passwd"}) {
    CAPTURE(bad);
    CHECK(!parse_index(encode_index(std::vector<IndexedTensor>{{"a", bad}}, 1)));
  }
  CHECK(!parse_index("{}"));
  CHECK(!parse_index(R"({"weight_map":{"a":5}})"));
}

TEST_CASE("safetensors: every F16 and every BF16 becomes the fp32 of the same value") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float from_f16 = 0.0F, from_bf16 = 0.0F;
    to_fp32(std::as_bytes(std::span(&half, 1)), TensorType::kF16, std::span(&from_f16, 1));
    to_fp32(std::as_bytes(std::span(&half, 1)), TensorType::kBf16, std::span(&from_bf16, 1));

    const int sign = (bits & 0x8000) != 0 ? -1 : 1, exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 1023;
    if (exponent == 31) {
      REQUIRE((mantissa == 0 ? std::isinf(from_f16) : std::isnan(from_f16)));
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      REQUIRE(from_f16 == static_cast<float>(sign * value));
      REQUIRE(std::signbit(from_f16) == (sign < 0));
    }
    REQUIRE(std::bit_cast<uint32_t>(from_bf16) == bits << 16);
  }
}

TEST_CASE("safetensors: fp32 is rounded to the nearest BF16, halves to even, and NaN stays NaN") {
  const std::vector<float> values{1.0F,
                                  std::bit_cast<float>(0x3f808000U),
                                  std::bit_cast<float>(0x3f818000U),
                                  std::bit_cast<float>(0x3f808001U),
                                  -0.0F,
                                  INFINITY,
                                  std::bit_cast<float>(0x7f800001U),
                                  std::numeric_limits<float>::max()};
  const std::vector<uint16_t> wanted{0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0x7fc0, 0x7f80};
  std::vector<uint16_t> rounded(values.size());

  from_fp32(values, TensorType::kBf16, std::as_writable_bytes(std::span(rounded)));

  CHECK(rounded == wanted);
}
