#include "runtime/tools/footprint_tool.h"

#include <sys/personality.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/descendants.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"
#include "runtime/tools/option_words.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "runtime/trainer/comm/rendezvous.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/train/spec_options.h"

namespace shardrun::tools {
namespace {

// What every job compiles before it begins, so that the libraries of matrix products are there as they are in a rank.
constexpr const char* kSmallJob =
    "name = \"small\"\n[program]\ntrainer = \"llama\"\n[model]\nlayers = 2\nhidden = 256\nheads = 4\n"
    "kv_heads = 4\nffn = 704\nvocab = 256\n[data]\nfiles = [\"/\"]\nsequence_length = ";
// Products of so few rows are oneDNN's on every machine (docs/decisions/0117), and none of those above is where there are loops of
// our own (0161).
constexpr int kRows = 128, kFewRows = 32, kOtherFewRows = 48;

// Where the kernel places libraries by chance, the pages that a fault brings in with it differ by up to half a MB from run to run. So
// the program begins once more, in places that are always the same. Where that is refused, as in some containers, it goes on.
void begin_in_same_places(std::span<char* const> arguments) {
  constexpr unsigned long kAsk = 0xffffffff;
  const int now = ::personality(kAsk);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (::personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) < 0) return;
  std::string name = "shardrun-rank", verb = "footprint";
  std::vector<char*> words = {name.data(), verb.data()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.push_back(nullptr);
  ::execv("/proc/self/exe", words.data());
}

// Returns how many there are.
int64_t compile_products(int rows) {
  const auto job = spec::parse_job_spec(fmt::format("{}{}\n", kSmallJob, rows), "small job");
  SHARDRUN_CHECK(job.has_value());
  record::LaunchPlan plan;
  plan.batch.global_batch = plan.batch.micro_batch = 1;
  plan.batch.gradient_accumulation = 1;
  return train::prepare_products(train::session_options(*job, plan), /*tensor_parallel=*/1);
}

}  // namespace

int run_footprint_tool(std::span<char* const> arguments) {
  begin_in_same_places(arguments);
  const int64_t products = compile_products(kRows);
  std::optional<comm::PluginSession> endpoints;
  if (arguments.size() == 4) {
    auto opened = comm::PluginSession::open({.plugin_path = arguments[0],
                                             .provider = arguments[1],
                                             .local_world_size = std::atoi(arguments[3]),
                                             .node_count = std::atoi(arguments[2])});
    if (!opened) return fail(opened.error());
    endpoints = std::move(opened).value();
    // Nobody shall answer, but what PMIx loads to ask is a rank's, too.
    ::unsetenv("PMIX_NAMESPACE");
    (void)comm::Rendezvous::begin(std::chrono::seconds(5));
  }
  const auto held = [] { return base::resident_bytes_of_tree(::getpid()); };
  const int64_t bytes = held();
  const int64_t few = compile_products(kFewRows), with_few = held();
  const int64_t more = compile_products(kOtherFewRows) - few;
  const int64_t of_one = more > 0 ? std::max<int64_t>(0, held() - with_few) / more : 0;
  const int64_t library = std::max<int64_t>(0, with_few - bytes - (few - products) * of_one);
  fmt::print("{} {} {} {}\n", bytes, products, of_one, products > 0 ? 0 : library);
  return contract::kExitDone;
}

}  // namespace shardrun::tools
