#include "launcher/plan/node_memory.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/command.h"

namespace shardrun::launcher {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

int64_t number(const contract::EnvironmentLookup& lookup, const char* name) {
  const std::string text = lookup(name).value_or("");
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() && value > 0 && value < int64_t{1} << 40
             ? value
             : 0;
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30);
}

#if defined(__x86_64__)
// Asks the processor, since clang 14 knows no name for it.
bool has_amx() {
  constexpr unsigned kAmxBf16 = 1U << 22;  // of EDX, leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0;
}
#endif

}  // namespace

std::optional<plan::ProgramBytes> program_in(std::string_view said) {
  constexpr int64_t kMost =
      int64_t{1} << 40;  // more than a program holds; sums and products of such numbers are numbers
  plan::ProgramBytes program;
  const char *at = said.data(), *const end = at + said.size();
  for (int64_t* const number :
       {&program.bytes, &program.products, &program.product_bytes, &program.library_bytes}) {
    const auto [behind, failure] = std::from_chars(at, end, *number);
    if (failure != std::errc() || *number < 0 || *number > kMost || behind == end) return std::nullopt;
    at = behind + 1;
  }
  return program;
}

plan::RankPlace rank_place(const record::LaunchPlan& plan) {
  auto products = plan::CpuProducts::kWidened;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16"))
    products = has_amx()                 ? plan::CpuProducts::kTiled
               : __builtin_cpu_is("amd") ? plan::CpuProducts::kPacked
                                         : plan::CpuProducts::kOneDnn;
#endif
  return {.world_size = plan.world_size(),
          .ranks_per_node = plan.ranks_per_node,
          .cpus_per_node = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
          .threads = plan.cpus_per_rank,
          .products = products,
          .program = std::nullopt};
}

plan::RankPlace measured_place(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  plan::RankPlace place = rank_place(plan);
  std::vector<std::string> ask = {plan.rank_program, "footprint"};
  if (place.world_size > 1) {
    ask.push_back(plan.comm_plugin(spec.communication.plugin));
    ask.push_back(spec.communication.provider);
    ask.push_back(std::to_string(plan.nodes));
    ask.push_back(std::to_string(plan.ranks_per_node));
  }
  const auto said = base::finish_command(ask, /*input=*/"", std::chrono::seconds(30));
  if (!said || said->status != 0) return place;
  place.program = program_in(said->out);
  return place;
}

std::optional<int64_t> machine_memory_bytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return std::nullopt;
  return pages * page_bytes;
}

std::optional<int64_t> node_memory_bytes(const contract::EnvironmentLookup& lookup,
                                         std::optional<int64_t> machine_bytes) {
  int64_t granted_mib = number(lookup, "SLURM_MEM_PER_NODE");
  if (granted_mib == 0) {
    const int64_t per_cpu = number(lookup, "SLURM_MEM_PER_CPU"), cpus = number(lookup, "SLURM_CPUS_ON_NODE");
    if (cpus > 0 && per_cpu < (int64_t{1} << 40) / cpus) granted_mib = per_cpu * cpus;
  }
  if (granted_mib == 0) return machine_bytes;
  return std::min(granted_mib * kMib, machine_bytes.value_or(granted_mib * kMib));
}

base::Result<void> fits_in_memory(const plan::MemoryPlan& rank, int ranks,
                                  std::optional<int64_t> node_bytes) {
  if (!node_bytes || rank.host_total() <= *node_bytes / ranks) return {};
  return base::Error(base::Code::kRefused,
                     fmt::format("a rank would hold {:.2f} GiB, and a node has {:.2f} GiB for {} of them",
                                 gib(rank.host_total()), gib(*node_bytes), ranks));
}

}  // namespace shardrun::launcher
