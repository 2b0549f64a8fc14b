#include "tests/unit/forecast/fit.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/io.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::tests {
namespace {

using launcher::Constants;
using launcher::kStacks;
using spec::TomlValue;

const TomlValue& of(const TomlValue& table, std::string_view key) {
  const TomlValue* found = table.find(key);
  SHARDRUN_CHECK(found != nullptr);
  return *found;
}

int integer(const TomlValue& table, std::string_view key) {
  return static_cast<int>(of(table, key).integer);
}
double number(const TomlValue& table, std::string_view key, double absent = 0.0) {
  const TomlValue* found = table.find(key);
  return found == nullptr ? absent : found->floating;
}
bool flag(const TomlValue& table, std::string_view key) {
  const TomlValue* found = table.find(key);
  return found != nullptr && found->boolean;
}

launcher::Machine machine_of(const TomlValue& table) {
  launcher::Machine machine;
  machine.generation = of(table, "generation").text == "ampere" ? launcher::Generation::kAmpere
                                                                : launcher::Generation::kHopper;
  machine.per_node = integer(table, "per_node");
  machine.peak = number(table, "peak_tflops") * 1e12;
  machine.fp8_peak = number(table, "fp8_tflops") * 1e12;
  machine.memory_bytes = number(table, "memory_gbytes") * 1e9;
  machine.memory_rate = number(table, "memory_rate") * 1e9;
  machine.link_rate = number(table, "link_rate") * 1e9;
  machine.network_rate = number(table, "network_rate") * 1e9;
  machine.host_rate = machine.generation == launcher::Generation::kAmpere ? 12e9 : 50e9;
  return machine;
}

launcher::ModelShape model_of(const TomlValue& table) {
  launcher::ModelShape model;
  model.layers = integer(table, "layers");
  model.hidden = integer(table, "hidden");
  model.kv_width = integer(table, "kv_width");
  model.ffn = integer(table, "ffn");
  model.ffn_matrices = integer(table, "ffn_matrices");
  model.vocab = integer(table, "vocab");
  model.tied = flag(table, "tied");
  return model;
}

spec::Strategy strategy_of(const std::string& text) {
  for (const spec::StrategyRules& rules : spec::kStrategies)
    if (text == rules.name) return rules.strategy;
  SHARDRUN_CHECK(false);
  return {};
}

spec::Checkpointing checkpointing_of(const std::string& text) {
  if (text == "full") return spec::Checkpointing::kFull;
  return text == "selective" ? spec::Checkpointing::kSelective : spec::Checkpointing::kNone;
}

TomlValue read(const std::string& path) {
  const auto text = base::read_file(path);
  SHARDRUN_CHECK(text.has_value());
  const auto parsed = spec::parse_toml(*text, path);
  SHARDRUN_CHECK(parsed.has_value());
  return *parsed;
}

// Returns what `item` names of a `kind`, from its own file or the other.
const TomlValue& named(const TomlValue& own, const TomlValue& other, std::string_view kind,
                       const TomlValue& item) {
  const std::string& name = of(item, kind).text;
  const TomlValue* kinds = own.find(kind);
  const TomlValue* found = kinds == nullptr ? nullptr : kinds->find(name);
  return found == nullptr ? of(of(other, kind), name) : *found;
}

Offered offered_of(const TomlValue& table) {
  return {.shard_degrees = of(table, "shard_degrees").text,
          .tensor = flag(table, "tensor"),
          .activation_offload = flag(table, "activation_offload")};
}

// Where each constant is in the vector that is fitted, what is known about it before, and how well.
struct Knob {
  const char* name;
  double Constants::*field;
  double before, spread;  // spread is that of the logarithm
};

constexpr Knob kKnobs[] = {
    {"gemm_ampere", &Constants::gemm_ampere, 0.75, 0.10},
    {"gemm_hopper", &Constants::gemm_hopper, 0.70, 0.10},
    {"elementwise", &Constants::elementwise, 1.5, 0.5},
    {"fused", &Constants::fused, 0.5, 0.3},
    {"fp8", &Constants::fp8, 0.75, 0.2},
    {"network", &Constants::network, 0.75, 0.15},
};
constexpr size_t kCommon = std::size(kKnobs);
constexpr double kMakingSpread = 0.04;  // spread of how well stacks use the same hardware
constexpr double kNoise = 0.03;         // noise of one published rate

Constants from_logarithms(const std::vector<double>& x) {
  Constants constants;
  for (size_t i = 0; i < kCommon; ++i) constants.*kKnobs[i].field = kKnobs[i].before * std::exp(x[i]);
  for (size_t i = 0; i < kStacks; ++i) constants.making[i] = std::exp(x[kCommon + i]);
  return constants;
}

// Solves the symmetric, positive system in place; the solution replaces `b`.
void solve(std::vector<std::vector<double>>& a, std::vector<double>& b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i)
    for (size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  for (size_t i = n; i-- > 0;) {
    for (size_t c = i + 1; c < n; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
}

}  // namespace

bool Offered::includes(const launcher::Layout& layout, int per_node) const {
  if (!tensor && layout.tensor_parallel > 1) return false;
  if (!activation_offload && layout.activation_offload) return false;
  const bool all = layout.shard_degree * layout.tensor_parallel == layout.nodes * per_node;
  if (shard_degrees == "node or all") return all || layout.shard_degree == per_node;
  if (shard_degrees == "one or all") return all || layout.shard_degree == 1;
  return shard_degrees == "any" || layout.shard_degree == 1;
}

std::vector<Row> read_rows(const std::string& path, const std::string& tables_path) {
  const TomlValue parsed = read(path), tables = read(tables_path);
  std::vector<Row> rows;
  for (const TomlValue& item : of(parsed, "row").items) {
    Row row;
    row.id = of(item, "id").text;
    row.source = of(item, "source").text;
    row.machine = machine_of(named(parsed, tables, "machine", item));
    row.model = model_of(named(parsed, tables, "model", item));
    const std::string& stack = of(item, "stack").text;
    row.traits = launcher::traits(*launcher::find_stack(stack));
    row.offered = offered_of(of(of(tables, "offered"), stack));
    row.traits.fused = row.traits.fused || flag(item, "fused");
    row.traits.asynchronous_tensor = flag(item, "asynchronous_tensor");
    row.traits.selective = number(item, "recomputed", row.traits.selective);
    if (item.find("reduce_bytes") != nullptr) row.traits.reduce_bytes = integer(item, "reduce_bytes");
    row.layout.nodes = integer(item, "nodes");
    row.layout.shard_degree = integer(item, "shard_degree");
    row.layout.tensor_parallel = integer(item, "tensor_parallel");
    row.layout.strategy = strategy_of(of(item, "strategy").text);
    row.layout.micro_batch = integer(item, "micro_batch");
    row.layout.accumulation = integer(item, "accumulation");
    row.layout.sequence_length = integer(item, "sequence_length");
    row.layout.checkpointing = checkpointing_of(of(item, "checkpointing").text);
    row.layout.activation_offload = flag(item, "activation_offload");
    row.layout.optimizer_offload = flag(item, "optimizer_offload");
    row.layout.fp8 = flag(item, "fp8");
    row.rate = item.find("rate") != nullptr
                   ? number(item, "rate")
                   : number(item, "tflops_6n") * 1e12 / (6.0 * row.model.parameters());
    rows.push_back(row);
  }
  return rows;
}

double predicted_rate(const Row& row, const Constants& constants) {
  const auto forecast = launcher::forecast_step(row.machine, row.model, row.layout, row.traits, constants);
  return forecast.tokens_per_second() / static_cast<double>(row.layout.nodes * row.machine.per_node);
}

Constants fit(const std::vector<Row>& rows) {
  constexpr int kRounds = 12;
  constexpr double kStep = 1e-4;
  const size_t n = kCommon + kStacks;
  std::vector<double> x(n, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<double>> normal(n, std::vector<double>(n, 0.0));
    std::vector<double> right(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      const double spread = i < kCommon ? kKnobs[i].spread : kMakingSpread;
      normal[i][i] = 1.0 / (spread * spread);
      right[i] = -x[i] / (spread * spread);
    }
    for (const Row& row : rows) {
      const double here = std::log(predicted_rate(row, from_logarithms(x)));
      const double miss = std::log(row.rate) - here;
      // The weight is Student's t: a row far off weighs less, so that one odd machine does not bend the others.
      const double weight = 1.0 / (kNoise * kNoise) / (1.0 + miss * miss / (9.0 * kNoise * kNoise));
      std::vector<double> slope(n);
      for (size_t i = 0; i < n; ++i) {
        x[i] += kStep;
        slope[i] = (std::log(predicted_rate(row, from_logarithms(x))) - here) / kStep;
        x[i] -= kStep;
      }
      for (size_t i = 0; i < n; ++i) {
        right[i] += weight * slope[i] * miss;
        for (size_t j = 0; j < n; ++j) normal[i][j] += weight * slope[i] * slope[j];
      }
    }
    solve(normal, right);
    for (size_t i = 0; i < n; ++i) x[i] += std::clamp(right[i], -0.3, 0.3);
  }
  return from_logarithms(x);
}

std::vector<double> values(const Constants& constants) {
  std::vector<double> all;
  for (const Knob& knob : kKnobs) all.push_back(constants.*knob.field);
  for (const double value : constants.making) all.push_back(value);
  return all;
}

std::vector<const char*> names() {
  std::vector<const char*> all;
  for (const Knob& knob : kKnobs) all.push_back(knob.name);
  for (int i = 0; i < kStacks; ++i) all.push_back(launcher::traits(static_cast<launcher::Stack>(i)).name);
  return all;
}

}  // namespace shardrun::tests
