// Small safetensors files and models for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "runtime/trainer/model/model.h"
#include "runtime/trainer/weights/safetensors.h"
#include "tests/support/folder.h"

namespace shardrun::weights {

using tests::Folder;
using tests::read_back;
using tests::write_file;

struct NamedTensor {
  std::string name;
  std::string dtype;  // F32 or BF16; or I64, whose elements are zero
  std::vector<int64_t> shape;
  std::vector<float> values;
};

std::string file_bytes(const std::vector<NamedTensor>& tensors);
// Returns the bytes of a file with this header and `data_bytes` zeros.
std::string with_header(const std::string& json, size_t data_bytes);

// Returns a block of one parameter after another, each with name and shape.
model::BlockLayout block_of(const std::string& name,
                            const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters);

// Returns element e of a tensor: a value that bf16 holds exactly.
float element_of(const std::string& name, int64_t element);
NamedTensor filled(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);

}  // namespace shardrun::weights
