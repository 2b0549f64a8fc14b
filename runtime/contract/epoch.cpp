#include "runtime/contract/epoch.h"

#include <charconv>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::contract {

using base::Code;
using base::Error;
using base::Result;

Result<int> read_epoch(const RunDir& run) {
  auto text = base::read_file(run.epoch(), /*limit_bytes=*/64);
  if (!text) return std::move(text).error();
  int epoch = 0;
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), epoch);
  if (failure != std::errc() || *end != '\n' || epoch < 0) {
    return Error(Code::kCorrupt, run.epoch() + ": holds no attempt's number");
  }
  return epoch;
}

Result<void> write_epoch(const RunDir& run, int attempt) {
  return base::write_file_atomically(run.epoch(), fmt::format("{}\n", attempt));
}

Result<void> check_epoch(const RunDir& run, int attempt) {
  const auto epoch = read_epoch(run);
  if (!epoch && epoch.error().code() == Code::kNotFound) return {};
  if (!epoch) return epoch.error();
  if (*epoch <= attempt) return {};
  return Error(Code::kRefused, fmt::format("{}: attempt {} has begun, so attempt {} may not write any more",
                                           run.root, *epoch, attempt));
}

}  // namespace shardrun::contract
