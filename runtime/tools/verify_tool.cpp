#include "runtime/tools/verify_tool.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/tools/option_words.h"
#include "runtime/trainer/checkpoint/verify.h"

namespace shardrun::tools {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;

Result<std::vector<int64_t>> steps_below(const checkpoint::Store& store) {
  ASSIGN_OR_RETURN(auto steps, store.steps());
  if (steps.empty())
    return Error(Code::kNotFound, fmt::format("{}: holds no complete checkpoint", store.directory()));
  return steps;
}

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
  std::error_code failure;
  const fs::path path = fs::canonical(arguments[0], failure);
  if (failure) return fail(Error(Code::kNotFound, fmt::format("{}: {}", arguments[0], failure.message())));
  const int64_t step = checkpoint::parse_step_name(path.filename().string());
  const checkpoint::Store store(step >= 0 ? path.parent_path().string() : path.string(), 1);
  const auto steps =
      step >= 0 ? Result<std::vector<int64_t>>(std::vector<int64_t>{step}) : steps_below(store);
  if (!steps) return fail(steps.error());
  bool whole = true;
  for (const int64_t one : *steps) whole = report(store, one) && whole;
  return whole ? contract::kExitDone : contract::kExitProgramFailed;
}

}  // namespace shardrun::tools
