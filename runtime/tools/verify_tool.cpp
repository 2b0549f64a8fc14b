#include "runtime/tools/verify_tool.h"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/tools/named_checkpoints.h"
#include "runtime/tools/option_words.h"
#include "runtime/trainer/checkpoint/verify.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;

// Returns whether the checkpoint is whole.
bool report(const checkpoint::Store& store, int64_t step) {
  const checkpoint::Verified verified = checkpoint::verify(store, step);
  const std::string path = base::visible(store.path_of(step));
  for (const Error& damage : verified.damage)
    fmt::print("{}: DAMAGED: {}\n", path, base::visible(damage.to_string()));
  if (verified.not_finite > 0)
    fmt::print("{}: {} of its {} numbers are not finite\n", path, verified.not_finite, verified.elements);
  if (!verified.damage.empty() || verified.not_finite > 0) return false;
  fmt::print("{}: whole: {:.1f} MB in {} file{}\n", path, static_cast<double>(verified.elements) * 4e-6,
             verified.files, verified.files == 1 ? "" : "s");
  return true;
}

}  // namespace

int run_verify_tool(std::span<char* const> arguments) {
  if (arguments.size() != 1)
    return fail(Error(Code::kInvalid, "a checkpoint is needed; see shardrun verify --help"));
  const auto named = find_checkpoints(arguments[0]);
  if (!named) return fail(named.error());
  bool whole = true;
  for (const int64_t step : named->steps) whole = report(named->store, step) && whole;
  return whole ? contract::kExitDone : contract::kExitProgramFailed;
}

}  // namespace shardrun::tools
