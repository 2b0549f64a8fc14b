#include "tests/unit/forecast/published.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/io.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::tests {
namespace {

using spec::TomlValue;

constexpr const char* kFolder = SOURCE_DIR "/tests/unit/forecast";
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

TomlValue read(const std::string& path) {
  const auto text = base::read_file(path);
  SHARDRUN_CHECK(text.has_value());
  const auto parsed = spec::parse_toml(*text, path);
  SHARDRUN_CHECK(parsed.has_value());
  return *parsed;
}

const TomlValue& of(const TomlValue& table, std::string_view key) {
  const TomlValue* found = table.find(key);
  SHARDRUN_CHECK(found != nullptr);
  return *found;
}

// A row with what its publication says of every row that does not say otherwise.
struct Item {
  const TomlValue &own, &every;

  const TomlValue* find(std::string_view key) const {
    const TomlValue* found = own.find(key);
    return found != nullptr ? found : every.find(key);
  }
  const TomlValue& at(std::string_view key) const {
    const TomlValue* found = find(key);
    SHARDRUN_CHECK(found != nullptr);
    return *found;
  }
  std::string text(std::string_view key, std::string absent = "") const {
    const TomlValue* found = find(key);
    return found == nullptr ? absent : found->text;
  }
  int integer(std::string_view key) const { return static_cast<int>(at(key).integer); }
  int integer(std::string_view key, int absent) const { return find(key) == nullptr ? absent : integer(key); }
  double number(std::string_view key, double absent) const {
    const TomlValue* found = find(key);
    return found == nullptr ? absent : found->floating;
  }
  bool flag(std::string_view key) const {
    const TomlValue* found = find(key);
    return found != nullptr && found->boolean;
  }
};

launcher::Machine machine_of(const TomlValue& table) {
  using launcher::Generation;
  launcher::Machine machine;
  const std::string& generation = of(table, "generation").text;
  machine.generation = generation == "ampere"   ? Generation::kAmpere
                       : generation == "hopper" ? Generation::kHopper
                                                : Generation::kTrainium;
  machine.per_node = static_cast<int>(of(table, "per_node").integer);
  machine.peak = of(table, "peak_tflops").floating * 1e12;
  machine.fp8_peak = of(table, "fp8_tflops").floating * 1e12;
  machine.memory_bytes = of(table, "memory_gbytes").floating * 1e9;
  machine.memory_rate = of(table, "memory_rate").floating * 1e9;
  machine.link_rate = of(table, "link_rate").floating * 1e9;
  machine.network_rate = of(table, "network_rate").floating * 1e9;
  machine.host_rate = machine.generation == Generation::kAmpere ? 12e9 : 50e9;
  return machine;
}

launcher::ModelShape model_of(const TomlValue& table) {
  const auto integer = [&](std::string_view key) { return static_cast<int>(of(table, key).integer); };
  launcher::ModelShape model;
  model.layers = integer("layers");
  model.hidden = integer("hidden");
  model.kv_width = integer("kv_width");
  model.ffn = integer("ffn");
  model.ffn_matrices = integer("ffn_matrices");
  model.vocab = integer("vocab");
  model.tied = of(table, "tied").boolean;
  const bool causal = table.find("causal") == nullptr || of(table, "causal").boolean;
  model.architecture = spec::find_architecture(causal ? "llama" : "bert");
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

launcher::Layout layout_of(const Item& item) {
  launcher::Layout layout;
  layout.nodes = item.integer("nodes");
  layout.shard_degree = item.integer("shard_degree");
  layout.tensor_parallel = item.integer("tensor_parallel");
  layout.given.pipeline = item.integer("pipeline", 1);
  layout.given.pipeline_chunks = item.integer("pipeline_chunks", 1);
  layout.given.context_parallel = item.integer("context_parallel", 1);
  layout.strategy = strategy_of(item.text("strategy"));
  layout.micro_batch = item.integer("micro_batch");
  layout.accumulation = item.integer("accumulation");
  layout.sequence_length = item.integer("sequence_length");
  layout.checkpointing = checkpointing_of(item.text("checkpointing"));
  layout.activation_offload = item.flag("activation_offload");
  layout.optimizer_offload = item.flag("optimizer_offload");
  layout.fp8 = item.flag("fp8");
  return layout;
}

Row row_of(const Item& item, const TomlValue& tables, const std::string& publication) {
  const std::string stack = item.text("stack");
  const TomlValue& offered = of(of(tables, "offered"), stack);
  Row row;
  row.id = item.text("id");
  row.publication = publication;
  row.edition = item.text("edition");
  row.machine = machine_of(of(of(tables, "machine"), item.text("machine")));
  row.model = model_of(of(of(tables, "model"), item.text("model")));
  row.layout = layout_of(item);
  row.traits = launcher::traits(*launcher::find_stack(stack));
  if (item.find("fused") != nullptr) row.traits.fused = item.flag("fused");
  row.traits.asynchronous_tensor = item.flag("asynchronous_tensor");
  row.traits.selective = item.number("recomputed", row.traits.selective);
  row.traits.score_passes = item.number("score_passes", row.traits.score_passes);
  row.traits.reduce_bytes = item.integer("reduce_bytes", row.traits.reduce_bytes);
  row.offered = {.shard_degrees = of(offered, "shard_degrees").text,
                 .tensor = of(offered, "tensor").boolean,
                 .activation_offload = of(offered, "activation_offload").boolean};
  row.rate = item.find("rate") != nullptr
                 ? item.number("rate", 0.0)
                 : item.at("tflops_6n").floating * 1e12 / (6.0 * row.model.parameters());
  row.memory = item.number("memory", 0.0) * kGib;
  return row;
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

std::vector<Row> published_rows() {
  const TomlValue tables = read(std::string(kFolder) + "/tables.toml");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(kFolder) + "/published"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Row> rows;
  for (const auto& file : files) {
    const TomlValue parsed = read(file.string());
    SHARDRUN_CHECK(!of(parsed, "address").text.empty() && !of(parsed, "date").text.empty());
    for (const TomlValue& own : of(parsed, "row").items)
      rows.push_back(row_of({own, of(parsed, "every")}, tables, file.stem().string()));
  }
  return rows;
}

}  // namespace shardrun::tests
