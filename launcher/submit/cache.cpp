#include "launcher/submit/cache.h"

#include "runtime/base/io.h"
#include "runtime/base/trust.h"

namespace shardrun::launcher {

using base::Result;

Result<void> prepare_cache(const spec::JobSpec& spec, const std::string& folder) {
  const std::string origin = spec.origin("precompile.cache");
  auto made = base::make_directories(folder, 0700);
  if (made) made = base::refuse_if_others_write(folder);
  if (!made) return std::move(made).error().context(origin + ": compiled code is run");
  return {};
}

}  // namespace shardrun::launcher
