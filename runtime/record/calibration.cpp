#include "runtime/record/calibration.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_text.h"

namespace shardrun::record {
namespace {

constexpr double kMost = 1e18;
constexpr int64_t kMostCount = int64_t{1} << 40;

// Kinds of a probe that are all read and written alike.
struct SpreadOfStep {
  const char* name;
  Spread StepProbe::*spread;
};
constexpr SpreadOfStep kStepSpreads[] = {{"table_forward", &StepProbe::table_forward},
                                         {"table_backward", &StepProbe::table_backward},
                                         {"layer_forward", &StepProbe::layer_forward},
                                         {"layer_backward", &StepProbe::layer_backward},
                                         {"layer_backward_selective", &StepProbe::layer_backward_selective},
                                         {"head_forward", &StepProbe::head_forward},
                                         {"head_backward", &StepProbe::head_backward}};

std::string spread_text(const Spread& spread) {
  return fmt::format("{{ low = {:.6e}, median = {:.6e}, high = {:.6e} }}", spread.low, spread.median,
                     spread.high);
}

std::string date_text(double unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

void read_spread(const spec::TomlValue& table, spec::SectionReader& section, const char* key,
                 spec::SpecReading& reading, Spread& out) {
  section.know(key);
  const spec::TomlValue* own = table.find(key);
  if (own == nullptr) return;
  spec::SectionReader members(table, key, reading);
  members.number("low", 0.0, kMost, out.low);
  members.number("median", 0.0, kMost, out.median);
  members.number("high", 0.0, kMost, out.high);
  members.finish();
}

GemmRate read_gemm(const spec::TomlValue& table, spec::SpecReading& reading) {
  GemmRate gemm;
  spec::SectionReader section(spec::SectionReader::Table{table}, "gemm", reading);
  section.word("type", "", gemm.type);
  section.integer("size", 1, kMostCount, gemm.size);
  read_spread(table, section, "flops_per_second", reading, gemm.flops_per_second);
  section.finish();
  return gemm;
}

StepProbe read_step(const spec::TomlValue& table, spec::SpecReading& reading) {
  StepProbe step;
  spec::SectionReader section(spec::SectionReader::Table{table}, "step", reading);
  section.integer("micro_batch", 1, kMostCount, step.micro_batch);
  section.integer("sequence_length", 1, kMostCount, step.sequence_length);
  section.integer("hidden", 1, kMostCount, step.hidden);
  section.integer("heads", 1, kMostCount, step.heads);
  section.integer("kv_heads", 1, kMostCount, step.kv_heads);
  section.integer("ffn", 1, kMostCount, step.ffn);
  section.integer("vocab", 1, kMostCount, step.vocab);
  for (const SpreadOfStep& one : kStepSpreads)
    read_spread(table, section, one.name, reading, step.*one.spread);
  section.finish();
  return step;
}

CollectiveProbe read_collective(const spec::TomlValue& table, spec::SpecReading& reading) {
  CollectiveProbe probe;
  spec::SectionReader section(spec::SectionReader::Table{table}, "collective", reading);
  section.word("kind", "_", probe.kind);
  section.word("among", "", probe.among);
  section.integer("nodes", 1, kMostCount, probe.nodes);
  section.integer("ranks", 2, kMostCount, probe.ranks);
  section.integer("bytes", 1, kMostCount, probe.bytes);
  read_spread(table, section, "seconds", reading, probe.seconds);
  section.number("cpu_seconds", 0.0, kMost, probe.cpu_seconds);
  section.number("beside_seconds", 0.0, kMost, probe.beside_seconds);
  section.finish();
  return probe;
}

template <typename Read>
void read_array(const spec::TomlValue& document, spec::SectionReader& root, const char* key,
                spec::SpecReading& reading, const Read& read) {
  root.know(key);
  const spec::TomlValue* list = document.find(key);
  if (list == nullptr) return;
  for (const spec::TomlValue& item : list->items) {
    if (item.kind != spec::TomlValue::Kind::kTable)
      return reading.fail(item.origin, fmt::format("{} holds something that is no table", key),
                          "calibrate again");
    read(item);
  }
}

}  // namespace

Spread Spread::of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](size_t numerator, size_t denominator) {
    return values[(values.size() - 1) * numerator / denominator];
  };
  return {at(1, 4), at(1, 2), at(3, 4)};
}

std::string to_toml(const Calibration& c) {
  std::string names;
  for (const std::string& name : c.node_names) names += (names.empty() ? "" : ", ") + spec::toml_string(name);
  std::string text = fmt::format(
      "# Measured by `shardrun calibrate` on {}, the network on {}; docs/formats.md says what each part is.\n"
      "# Written anew by every calibration: notes belong elsewhere.\n"
      "format_version = {}\nmeasured_at = {:.3f}\nnetwork_measured_at = {:.3f}\nshardrun = {}\nplugin = {}\n"
      "provider = {}\ncpu = {}\nnode_names = [{}]\nnodes = {}\nranks_per_node = {}\ncpus_per_rank = {}\n"
      "machines = {}\ncpus_per_node = {}\nmemory_bytes = {}\n",
      date_text(c.measured_at), date_text(c.network_measured_at), Calibration::kFormatVersion, c.measured_at,
      c.network_measured_at, spec::toml_string(c.shardrun), spec::toml_string(c.plugin),
      spec::toml_string(c.provider), spec::toml_string(c.cpu), names, c.nodes, c.ranks_per_node,
      c.cpus_per_rank, c.machines, c.cpus_per_node, c.memory_bytes);
  text += "memory_bytes_per_second = " + spread_text(c.memory_bytes_per_second) + "\n";
  text += "update_seconds_per_parameter = " + spread_text(c.update_seconds_per_parameter) + "\n";
  for (const GemmRate& gemm : c.gemms)
    text += fmt::format("\n[[gemm]]\ntype = {}\nsize = {}\nflops_per_second = {}\n",
                        spec::toml_string(gemm.type), gemm.size, spread_text(gemm.flops_per_second));
  for (const StepProbe& step : c.steps) {
    text += fmt::format(
        "\n[[step]]\nmicro_batch = {}\nsequence_length = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nffn = "
        "{}\nvocab = {}\n",
        step.micro_batch, step.sequence_length, step.hidden, step.heads, step.kv_heads, step.ffn, step.vocab);
    for (const SpreadOfStep& one : kStepSpreads)
      text += fmt::format("{} = {}\n", one.name, spread_text(step.*one.spread));
  }
  for (const CollectiveProbe& probe : c.collectives) {
    text += fmt::format(
        "\n[[collective]]\nkind = {}\namong = {}\nnodes = {}\nranks = {}\nbytes = {}\nseconds = {}\n"
        "cpu_seconds = {:.6e}\nbeside_seconds = {:.6e}\n",
        spec::toml_string(probe.kind), spec::toml_string(probe.among), probe.nodes, probe.ranks, probe.bytes,
        spread_text(probe.seconds), probe.cpu_seconds, probe.beside_seconds);
  }
  return text;
}

Result<Calibration> parse_calibration(std::string_view text, std::string_view file_name) {
  auto document = spec::parse_toml(text, file_name);
  if (!document) return std::move(document).error();
  spec::SpecReading reading;
  reading.document = "a calibration";
  Calibration c;
  int64_t version = 0;
  spec::SectionReader root(spec::SectionReader::Table{*document}, "", reading);
  root.integer("format_version", 1, kMostCount, version);
  if (version != 0 && version != Calibration::kFormatVersion)
    return base::Error(base::Code::kUnsupported,
                       fmt::format("{} has format {}, this version reads {}; calibrate again", file_name,
                                   version, Calibration::kFormatVersion));
  root.number("measured_at", 0.0, kMost, c.measured_at);
  root.number("network_measured_at", 0.0, kMost, c.network_measured_at);
  root.text("shardrun", c.shardrun);
  root.text("plugin", c.plugin);
  root.text("provider", c.provider);
  root.text("cpu", c.cpu);
  root.texts("node_names", c.node_names);
  root.integer("nodes", 1, kMostCount, c.nodes);
  root.integer("ranks_per_node", 1, kMostCount, c.ranks_per_node);
  root.integer("cpus_per_rank", 1, kMostCount, c.cpus_per_rank);
  root.integer("machines", 1, kMostCount, c.machines);
  root.integer("cpus_per_node", 1, kMostCount, c.cpus_per_node);
  root.integer("memory_bytes", 0, kMostCount, c.memory_bytes);
  read_spread(*document, root, "memory_bytes_per_second", reading, c.memory_bytes_per_second);
  read_spread(*document, root, "update_seconds_per_parameter", reading, c.update_seconds_per_parameter);
  read_array(*document, root, "gemm", reading,
             [&](const spec::TomlValue& item) { c.gemms.push_back(read_gemm(item, reading)); });
  read_array(*document, root, "step", reading,
             [&](const spec::TomlValue& item) { c.steps.push_back(read_step(item, reading)); });
  read_array(*document, root, "collective", reading,
             [&](const spec::TomlValue& item) { c.collectives.push_back(read_collective(item, reading)); });
  root.finish();
  if (!reading.error && (version == 0 || c.nodes == 0 || c.ranks_per_node == 0))
    reading.fail(std::string(file_name), "it lacks its version or its nodes", "calibrate again");
  if (reading.error) return std::move(*reading.error);
  return c;
}

}  // namespace shardrun::record
