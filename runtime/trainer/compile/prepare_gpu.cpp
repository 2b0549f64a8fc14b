#include "runtime/trainer/compile/prepare_gpu.h"

#include <unistd.h>

#include <algorithm>

#include "runtime/trainer/compile/recipe.h"

namespace shardrun::compile {
namespace {

bool has_all(const KernelCache& cache, const Compiler& compiler,
             std::span<const kernels::KernelShape> shapes) {
  return std::all_of(shapes.begin(), shapes.end(), [&](const kernels::KernelShape& shape) {
    const std::string digest = digest_of(recipe_of(shape, compiler.identity(), compiler.flags()));
    return ::access(cache.path_of(digest).c_str(), R_OK) == 0;
  });
}

}  // namespace

Result<Preparation> prepare_for_gpu(const KernelCache& cache, const Result<Nvrtc>& found,
                                    const std::string& architecture,
                                    std::span<const kernels::KernelShape> shapes,
                                    const PrepareOptions& options) {
  if (found) {
    RETURN_IF_ERROR(cache.remember_compiler(found->identity()));
    return prepare(cache, *found, shapes, options);
  }
  if (found.error().code() != base::Code::kNotFound) return found.error();
  const auto identities = cache.compilers();
  if (!identities) return identities.error();
  if (identities->empty()) return found.error();
  const auto whole = std::find_if(identities->begin(), identities->end(), [&](const std::string& identity) {
    return has_all(cache, Nvrtc::absent(identity, architecture, found.error()), shapes);
  });
  const std::string& identity = whole != identities->end() ? *whole : identities->front();
  return prepare(cache, Nvrtc::absent(identity, architecture, found.error()), shapes, options);
}

}  // namespace shardrun::compile
