#include "runtime/trainer/checkpoint/verify.h"

#include <algorithm>
#include <cmath>

namespace shardrun::checkpoint {
namespace {

Result<void> verify_file(const Store& store, const Manifest& manifest, int file, Verified& verified) {
  ASSIGN_OR_RETURN(auto reader, ShardFileReader::open(store.path_of(manifest.step), manifest, file));
  for (size_t block = 0; block < manifest.blocks.size(); ++block) {
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      RETURN_IF_ERROR(reader.read(block, tensor, [&](int64_t, std::span<const float> values) {
        verified.elements += static_cast<int64_t>(values.size());
        verified.not_finite +=
            std::count_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
      }));
    }
  }
  return {};
}

}  // namespace

Verified verify(const Store& store, int64_t step) {
  Verified verified;
  auto manifest = store.read_manifest(step);
  if (!manifest) {
    verified.damage.push_back(std::move(manifest).error());
    return verified;
  }
  for (int file = 0; file < manifest->spread.files(); ++file) {
    ++verified.files;
    if (auto whole = verify_file(store, *manifest, file, verified); !whole)
      verified.damage.push_back(std::move(whole).error());
  }
  return verified;
}

}  // namespace shardrun::checkpoint
