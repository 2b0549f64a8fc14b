#include "runtime/record/calibration.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/fields.h"
#include "runtime/base/unix_time.h"
#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_text.h"

namespace shardrun::record {
namespace {

constexpr double kMost = 1e18;
constexpr int64_t kMostCount = int64_t{1} << 40;

// Writes a table's members, then the tables below it. A visitor as runtime/base/fields.h has them, for the types of this file;
// integers have their least value as a third argument.
class TomlWriter {
 public:
  void operator()(const char* key, const std::string& text) { add(key, spec::toml_string(text)); }
  void operator()(const char* key, int64_t number, int64_t = 1) { add(key, std::to_string(number)); }
  void operator()(const char* key, double number) { add(key, fmt::format("{:.6e}", number)); }
  void time(const char* key, double seconds) { add(key, fmt::format("{:.3f}", seconds)); }
  void word(const char* key, std::string_view, const std::string& text) { (*this)(key, text); }
  void version(int newest) { (*this)("format_version", int64_t{newest}); }
  void operator()(const char* key, const std::vector<std::string>& texts) {
    add(key, spec::toml_array(texts));
  }
  void operator()(const char* key, const Spread& spread) {
    add(key, fmt::format("{{ low = {:.6e}, median = {:.6e}, high = {:.6e} }}", spread.low, spread.median,
                         spread.high));
  }
  template <typename T>
  void operator()(const char* key, const std::vector<T>& tables) {
    for (const T& table : tables) {
      text_ += fmt::format("\n[[{}]]\n", key);
      fields(*this, table);
    }
  }
  const std::string& text() const { return text_; }

 private:
  void add(const char* key, const std::string& value) { text_ += fmt::format("{} = {}\n", key, value); }

  std::string text_;
};

// Reads what TomlWriter writes. Call finish() last.
class TomlReader {
 public:
  TomlReader(const spec::TomlValue& table, const char* label, spec::SpecReading& reading)
      : table_(table), section_(spec::SectionReader::Table{table}, label, reading), reading_(reading) {}

  void operator()(const char* key, std::string& text) { section_.text(key, text); }
  void operator()(const char* key, int64_t& number, int64_t least = 1) {
    section_.integer(key, least, kMostCount, number);
  }
  void operator()(const char* key, double& number) { section_.number(key, 0.0, kMost, number); }
  void time(const char* key, double& seconds) { (*this)(key, seconds); }
  void word(const char* key, std::string_view allowed, std::string& text) {
    section_.word(key, allowed, text);
  }
  void operator()(const char* key, std::vector<std::string>& texts) { section_.texts(key, texts); }
  void version(int) { (*this)("format_version", version_); }
  void operator()(const char* key, Spread& spread) {
    section_.know(key);
    if (table_.find(key) == nullptr) return;
    spec::SectionReader members(table_, key, reading_);
    members.number("low", 0.0, kMost, spread.low);
    members.number("median", 0.0, kMost, spread.median);
    members.number("high", 0.0, kMost, spread.high);
    members.finish();
  }
  template <typename T>
  void operator()(const char* key, std::vector<T>& tables) {
    section_.know(key);
    const spec::TomlValue* list = table_.find(key);
    if (list == nullptr) return;
    for (const spec::TomlValue& item : list->items) {
      if (item.kind != spec::TomlValue::Kind::kTable)
        return reading_.fail(item.origin, fmt::format("{} holds something that is no table", key),
                             "calibrate again");
      TomlReader members(item, key, reading_);
      fields(members, tables.emplace_back());
      members.finish();
    }
  }
  void finish() { section_.finish(); }
  // Returns 0 where there is none.
  int64_t version() const { return version_; }

 private:
  const spec::TomlValue& table_;
  spec::SectionReader section_;
  spec::SpecReading& reading_;
  int64_t version_ = 0;
};

}  // namespace

void fields(auto& visit, base::Is<GemmRate> auto& gemm) {
  visit.word("type", "", gemm.type);
  visit("size", gemm.size);
  visit("flops_per_second", gemm.flops_per_second);
}

void fields(auto& visit, base::Is<StepProbe> auto& step) {
  visit("micro_batch", step.micro_batch);
  visit("sequence_length", step.sequence_length);
  visit("hidden", step.hidden);
  visit("heads", step.heads);
  visit("kv_heads", step.kv_heads);
  visit("ffn", step.ffn);
  visit("vocab", step.vocab);
  visit("table_forward", step.table_forward);
  visit("table_backward", step.table_backward);
  visit("layer_forward", step.layer_forward);
  visit("layer_backward", step.layer_backward);
  visit("layer_backward_selective", step.layer_backward_selective);
  visit("head_forward", step.head_forward);
  visit("head_backward", step.head_backward);
}

void fields(auto& visit, base::Is<CollectiveProbe> auto& probe) {
  visit.word("kind", "_", probe.kind);
  visit.word("among", "", probe.among);
  visit("nodes", probe.nodes);
  visit("ranks", probe.ranks, 2);
  visit("bytes", probe.bytes);
  visit("seconds", probe.seconds);
  visit("cpu_seconds", probe.cpu_seconds);
  visit("pace", probe.pace);
  visit("cpu_beside", probe.cpu_beside);
}

void fields(auto& visit, base::Is<Calibration> auto& c) {
  visit.version(Calibration::kFormatVersion);
  visit.time("measured_at", c.measured_at);
  visit.time("network_measured_at", c.network_measured_at);
  visit("shardrun", c.shardrun);
  visit("plugin", c.plugin);
  visit("provider", c.provider);
  visit("cpu", c.cpu);
  visit("node_names", c.node_names);
  visit("nodes", c.nodes);
  visit("ranks_per_node", c.ranks_per_node);
  visit("cpus_per_rank", c.cpus_per_rank);
  visit("machines", c.machines);
  visit("cpus_per_node", c.cpus_per_node);
  visit("memory_bytes", c.memory_bytes, 0);
  visit("memory_bytes_per_second", c.memory_bytes_per_second);
  visit("update_seconds_per_parameter", c.update_seconds_per_parameter);
  visit("gemm", c.gemms);
  visit("step", c.steps);
  visit("collective", c.collectives);
}

Spread Spread::of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](size_t numerator, size_t denominator) {
    return values[(values.size() - 1) * numerator / denominator];
  };
  return {at(1, 4), at(1, 2), at(3, 4)};
}

std::string to_toml(const Calibration& c) {
  constexpr const char* kDate = "%Y-%m-%d %H:%M:%S UTC";
  TomlWriter writer;
  fields(writer, c);
  return fmt::format(
             "# Measured by `shardrun calibrate` on {}, the network on {}; docs/formats.md says what each "
             "part is.\n"
             "# Written anew by every calibration: notes belong elsewhere.\n",
             base::utc_text(c.measured_at, kDate), base::utc_text(c.network_measured_at, kDate)) +
         writer.text();
}

Result<Calibration> parse_calibration(std::string_view text, std::string_view file_name) {
  ASSIGN_OR_RETURN(auto document, spec::parse_toml(text, file_name));
  spec::SpecReading reading;
  reading.document = "a calibration";
  Calibration c;
  TomlReader root(document, "", reading);
  fields(root, c);
  if (root.version() != 0 && root.version() != Calibration::kFormatVersion)
    return base::Error(base::Code::kUnsupported,
                       fmt::format("{} has format {}, this version reads {}; calibrate again", file_name,
                                   root.version(), Calibration::kFormatVersion));
  root.finish();
  const std::pair<const char*, int64_t> needed[] = {
      {"format_version", root.version()}, {"nodes", c.nodes},       {"ranks_per_node", c.ranks_per_node},
      {"cpus_per_rank", c.cpus_per_rank}, {"machines", c.machines}, {"cpus_per_node", c.cpus_per_node},
      {"memory_bytes", c.memory_bytes}};
  for (const auto& [key, value] : needed)
    if (!reading.error && value <= 0)
      reading.fail(std::string(file_name), fmt::format("{} is missing or 0", key), "calibrate again");
  if (reading.error) return std::move(*reading.error);
  return c;
}

}  // namespace shardrun::record
