#include "runtime/tools/export_tool.h"

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/run_dir.h"
#include "runtime/tools/export_checkpoint.h"
#include "runtime/tools/named_checkpoints.h"
#include "runtime/tools/option_words.h"
#include "runtime/tools/stop_requests.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;

struct Options {
  std::string checkpoint;
  std::string run_directory, origin;  // for the card
  ExportOptions run;
  bool json = false;
};

Result<void> read_option(std::string_view name, std::string_view value, Options& options) {
  if (name == "checkpoint") {
    options.checkpoint = value;
  } else if (name == "output") {
    options.run.output = value;
    while (options.run.output.size() > 1 && options.run.output.back() == '/') options.run.output.pop_back();
  } else if (name == "dtype" && (value == "bf16" || value == "fp32")) {
    options.run.type = value == "bf16" ? weights::TensorType::kBf16 : weights::TensorType::kF32;
  } else if (name == "dtype") {
    return Error(Code::kInvalid, fmt::format("--dtype {}: choose bf16 or fp32", value));
  } else if (name == "companions") {
    options.run.companions = value;
  } else if (name == "base") {
    options.run.base = value;
  } else if (name == "run") {
    options.run_directory = value;
  } else if (name == "origin") {
    options.origin = value;
  } else if (name == "max-shard-bytes") {
    RETURN_IF_ERROR(read_number(value, name, options.run.max_file_bytes));
    if (options.run.max_file_bytes == 0)
      return Error(Code::kInvalid, "--max-shard-bytes: a file has room for 1 byte at least");
  } else {
    return Error(Code::kInvalid, fmt::format("there is no option --{}", name));
  }
  return {};
}

Result<Options> read_options(std::span<char* const> arguments) {
  Options options;
  RETURN_IF_ERROR(read_option_words(
      arguments, "export",
      {{"--json", options.json}, {"--adapter", options.run.adapter}, {"--gguf", options.run.gguf}},
      [&](auto name, auto value) { return read_option(name, value, options); }));
  if (options.checkpoint.empty() || options.run.output.empty()) {
    return Error(Code::kInvalid, "a checkpoint and an output folder are needed; see shardrun export --help");
  }
  return options;
}

// What the run's directory says of it.
Result<ExportedRun> read_run(const Options& options) {
  const record::RunDir run{options.run_directory};
  ExportedRun exported;
  exported.origin = options.origin;
  ASSIGN_OR_RETURN(exported.record, read_record(run));
  ASSIGN_OR_RETURN(const auto launch, read_plan(run));
  ASSIGN_OR_RETURN(exported.job, spec::load_job_spec(run.job_toml(), launch.overrides));
  return exported;
}

Result<ExportSummary> run(Options& options) {
  if (!options.run_directory.empty()) {
    auto exported = read_run(options);
    if (!exported) return std::move(exported).error().context(options.run_directory);
    options.run.run = std::move(*exported);
  }
  ASSIGN_OR_RETURN(const auto named, find_checkpoints(options.checkpoint));
  return read_newest(named, [&](int64_t step) -> Result<ExportSummary> {
    ASSIGN_OR_RETURN(const auto manifest, named.store.read_manifest(step));
    return export_checkpoint(named.store, manifest, options.run);
  });
}

// What --json prints.
struct Exported {
  std::string output, dtype;
  ExportSummary summary;
};

void fields(auto& visit, const Exported& exported) {
  visit("output", exported.output);
  visit("step", exported.summary.step);
  visit("dtype", exported.dtype);
  visit("tensors", exported.summary.tensors);
  visit("tensor_bytes", exported.summary.tensor_bytes);
  visit("files", exported.summary.files);
  visit("companions", exported.summary.companions);
}

void report(const Options& options, const ExportSummary& summary) {
  const char* dtype = options.run.type == weights::TensorType::kF32 ? "fp32" : "bf16";
  if (options.json) {
    fmt::print("{}", base::json_of(Exported{options.run.output, dtype, summary}));
    return;
  }
  fmt::print("{}: {} tensors of step {} in {}, {:.1f} MB in {} file{}, {}\n", options.run.output,
             summary.tensors, summary.step, dtype, static_cast<double>(summary.tensor_bytes) / 1e6,
             summary.files, summary.files == 1 ? "" : "s",
             summary.companions.empty() ? "without a tokenizer" : "with its tokenizer");
}

}  // namespace

int run_export_tool(std::span<char* const> arguments) {
  auto options = read_options(arguments);
  if (!options) return fail(options.error());
  StopRequests stop;
  options->run.stop_requested = [&stop] { return stop.came(); };
  const auto done = run(*options);
  if (!done) return fail(done.error());
  report(*options, *done);
  return contract::kExitDone;
}

}  // namespace shardrun::tools
