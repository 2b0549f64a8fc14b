#include "runtime/record/tensorboard.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

using namespace shardrun::record;

namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

// The bytes are those of TensorBoard 2.20's own RecordWriter and messages.
TEST_CASE(
    "tensorboard: the first record names the version of the format, byte for byte as TensorBoard writes it") {
  CHECK(hex(tensorboard_version(1700000000.125)) ==
        "1800000000000000a37f4b220900000840fc54d9411a0d627261696e2e4576656e743a328bbe60c8");
}

TEST_CASE("tensorboard: a record of scalars is byte for byte the one that TensorBoard writes") {
  const std::array<Scalar, 2> scalars = {{{"loss/train", 2.5}, {"optimizer/learning_rate", 3e-4}}};

  CHECK(hex(tensorboard_scalars(1700000000.125, 300, scalars)) ==
        "410000000000000000a9c2ab"
        "0900000840fc54d94110ac02"
        "2a330a110a0a6c6f73732f747261696e1500002040"
        "0a1e0a176f7074696d697a65722f6c6561726e696e675f726174651552499d39"
        "9cb8850a");
}

TEST_CASE("tensorboard: a record of a text is byte for byte the one that TensorBoard writes") {
  CHECK(hex(tensorboard_text(1700000000.125, 7, "data/first_sequence", "    a *b*\n")) ==
        "440000000000000043592e9a0900000840fc54d94110072a370a350a13646174612f66697273745f73657175656e63654214"
        "0807120412020801420a2020202061202a622a0a4a080a060a0474657874734a049f");
}
