#include "tests/unit/weights/files.h"

#include <cstring>

namespace shardrun::weights {

std::string file_bytes(const std::vector<NamedTensor>& tensors) {
  std::string header = "{", data;
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    if (tensor.dtype == "I64") data.append(tensor.values.size() * 8, '\0');
    if (tensor.dtype == "F32" || tensor.dtype == "BF16") {
      const TensorType type = tensor_type(tensor.dtype);
      std::vector<std::byte> bytes(tensor.values.size() * static_cast<size_t>(bytes_per_element(type)));
      from_fp32(tensor.values, type, bytes);
      data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    header += header.size() > 1 ? "," : "";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + shape_text(tensor.shape) + ",\"data_offsets\":[" + std::to_string(begin) +
              "," + std::to_string(data.size()) + "]}";
  }
  std::string bytes = with_header(header + "}", 0);
  return bytes + data;
}

std::string with_header(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + std::string(data_bytes, '\0');
}

model::BlockLayout block_of(const std::string& name,
                            const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters) {
  model::BlockLayout block;
  block.name = name;
  for (const auto& item : parameters) {
    model::ParameterInfo info;
    info.name = item.first;
    info.shape = item.second;
    info.offset = block.elements;
    block.elements += info.elements();
    block.parameters.push_back(std::move(info));
  }
  return block;
}

float element_of(const std::string& name, int64_t element) {
  return static_cast<float>((element + static_cast<int64_t>(name.size())) % 251) - 100.0F;
}

NamedTensor filled(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
  NamedTensor tensor{name, dtype, shape, {}};
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  for (int64_t i = 0; i < elements; ++i) tensor.values.push_back(element_of(name, i));
  return tensor;
}

}  // namespace shardrun::weights
