#include "runtime/plan/mesh.h"

#include <numeric>

#include <fmt/format.h>

#include "runtime/plan/shard_layout.h"

namespace shardrun::plan {
namespace {

std::vector<uint32_t> strided(int first, int stride, int count) {
  std::vector<uint32_t> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(static_cast<uint32_t>(first + i * stride));
  return ranks;
}

// Returns the divisors as text: "1, 2, 4 or 8".
std::string divisors(int number) {
  std::string text;
  for (int candidate = 1; candidate <= number; ++candidate) {
    if (number % candidate != 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : candidate == number ? " or " : ", ", candidate);
  }
  return text;
}

base::Error refusal(const spec::JobSpec& spec, const char* key, const std::string& what,
                    const std::string& mend) {
  return base::Error(base::Code::kInvalid, fmt::format("{}: {}; {}", spec.origin(key), what, mend));
}

// Checks that `degree` can cut every matrix into equal parts, and the tokens of a micro-batch too.
Result<void> check_tensor_parallel(const spec::JobSpec& spec, int degree) {
  if (degree == 1) return {};
  const struct {
    const char* what;
    int64_t count;
  } parts[] = {{"heads", spec.model.heads},
               {"kv_heads", spec.model.kv_heads},
               {"ffn", spec.model.ffn},
               {"vocab", spec.model.vocab},
               {"micro_batch × sequence_length", int64_t{spec.batch.micro_batch} * spec.data.sequence_length /
                                                     spec.sharding.context_parallel}};
  for (const auto& part : parts) {
    if (part.count % degree == 0) continue;
    return refusal(
        spec, "sharding.tensor_parallel",
        fmt::format("tensor_parallel {} does not divide {} {}", degree, part.what, part.count),
        "choose a degree that divides all of heads, kv_heads, ffn, vocab and the tokens of a micro-batch");
  }
  return {};
}

// Checks that the ranks which share a copy of the state are those that share the experts, whose parts it can be cut into.
Result<void> check_expert_parallel(const spec::JobSpec& spec, const Mesh& mesh) {
  const int ranks = spec.sharding.expert_parallel;
  if (ranks == 1) return {};
  if (ranks != mesh.shard_degree) {
    return refusal(spec, "sharding.expert_parallel",
                   fmt::format("expert_parallel {} is not the {} ranks that share a copy of the state", ranks,
                               mesh.shard_degree),
                   fmt::format("write {}, or strategy = \"hybrid_shard\" with shard_degree = {}",
                               mesh.shard_degree, ranks));
  }
  const int64_t part = int64_t{3} * spec.model.experts.count / ranks * spec.model.hidden * spec.model.ffn;
  if (part % kShardAlignment == 0) return {};
  return refusal(
      spec, "sharding.expert_parallel",
      fmt::format("a rank's experts have {} elements, which {} does not divide", part, kShardAlignment),
      "make hidden or ffn a multiple of 32, or remove it");
}

}  // namespace

std::vector<uint32_t> Mesh::tensor_group(int global_rank) const {
  return strided(global_rank - tensor_rank(global_rank), 1, tensor_parallel);
}

std::vector<uint32_t> Mesh::shard_group(int global_rank) const {
  return strided(global_rank - shard_rank(global_rank) * tensor_parallel, tensor_parallel, shard_degree);
}

std::vector<uint32_t> Mesh::replica_group(int global_rank) const {
  const int stride = shard_degree * tensor_parallel;
  return strided(global_rank - replica_rank(global_rank) * stride, stride, replicas());
}

std::vector<uint32_t> Mesh::context_group(int global_rank) const {
  return strided(global_rank - context_rank(global_rank) * tensor_parallel, tensor_parallel,
                 context_parallel);
}

std::vector<uint32_t> Mesh::link_group(int global_rank, bool odd) const {
  const int own = stage(global_rank), from = own % 2 == int{odd} ? own : own - 1;
  if (from < 0 || from + 1 >= pipeline_parallel) return strided(global_rank, 1, 1);
  return strided(global_rank - (own - from) * stage_ranks(), stage_ranks(), 2);
}

std::vector<uint32_t> Mesh::end_group(int global_rank) const {
  const int own = stage(global_rank), last = pipeline_parallel - 1;
  if (last == 0 || (own > 0 && own < last)) return strided(global_rank, 1, 1);
  return strided(global_rank % stage_ranks(), last * stage_ranks(), 2);
}

Result<Mesh> solve_mesh(const spec::JobSpec& spec, int64_t world_size, int ranks_per_node) {
  const spec::ShardingSpec& sharding = spec.sharding;
  Mesh mesh;
  mesh.world_size = static_cast<int>(world_size);
  mesh.pipeline_parallel = sharding.pipeline_parallel;
  if (mesh.world_size % mesh.pipeline_parallel != 0) {
    return refusal(
        spec, "sharding.pipeline_parallel",
        fmt::format("pipeline_parallel {} does not divide {} ranks", mesh.pipeline_parallel, world_size),
        fmt::format("write {}", divisors(mesh.world_size)));
  }
  mesh.tensor_parallel = sharding.tensor_parallel;
  if (mesh.stage_ranks() % mesh.tensor_parallel != 0) {
    return refusal(spec, "sharding.tensor_parallel",
                   fmt::format("tensor_parallel {} does not divide {} ranks{}", mesh.tensor_parallel,
                               mesh.stage_ranks(), mesh.pipeline_parallel > 1 ? " of a stage" : ""),
                   fmt::format("write {}", divisors(mesh.stage_ranks())));
  }
  RETURN_IF_ERROR(check_tensor_parallel(spec, mesh.tensor_parallel));
  const int data_parallel = mesh.data_parallel();
  switch (spec::rules_of(sharding.strategy).degree) {
    case spec::ShardDegree::kOne:
      mesh.shard_degree = 1;
      break;
    case spec::ShardDegree::kAll:
      mesh.shard_degree = data_parallel;
      break;
    case spec::ShardDegree::kAsked:
      mesh.shard_degree = sharding.shard_degree > 0
                              ? sharding.shard_degree
                              : std::gcd(data_parallel, std::max(1, ranks_per_node / mesh.tensor_parallel));
      break;
  }
  if (data_parallel % mesh.shard_degree != 0) {
    return refusal(spec, "sharding.shard_degree",
                   fmt::format("shard_degree {} does not divide {} data-parallel ranks", mesh.shard_degree,
                               data_parallel),
                   fmt::format("write {}", divisors(data_parallel)));
  }
  mesh.context_parallel = sharding.context_parallel;
  if (data_parallel % mesh.context_parallel != 0) {
    return refusal(spec, "sharding.context_parallel",
                   fmt::format("context_parallel {} does not divide {} data-parallel ranks",
                               mesh.context_parallel, data_parallel),
                   fmt::format("write {}", divisors(data_parallel)));
  }
  RETURN_IF_ERROR(check_expert_parallel(spec, mesh));
  return mesh;
}

}  // namespace shardrun::plan
