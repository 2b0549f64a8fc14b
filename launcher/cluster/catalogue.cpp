#include "launcher/cluster/catalogue.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>

#include "launcher/cluster/built_in.h"
#include "runtime/base/text.h"
#include "runtime/spec/spec_reader.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::SectionReader;
using spec::SpecReading;
using spec::TomlValue;

constexpr double kMostTflops = 1e6, kMostBandwidth = 1e6;

void read_peaks(const TomlValue& table, const std::string& key, SpecReading& reading, PeakTflops& peak) {
  SectionReader peaks(table, key, reading);
  peaks.number("bf16", 0, kMostTflops, peak.bf16);
  peaks.number("fp16", 0, kMostTflops, peak.fp16);
  peaks.number("tf32", 0, kMostTflops, peak.tf32);
  peaks.number("fp32", 0, kMostTflops, peak.fp32);
  peaks.number("fp8", 0, kMostTflops, peak.fp8);
  peaks.finish();
}

Accelerator read_accelerator(const TomlValue& table, const std::string& name, SpecReading& reading) {
  Accelerator unit;
  unit.name = name;
  SectionReader section(table, name, reading);
  section.word("maker", "", unit.maker);
  section.integer("memory_mib", 1, int64_t{1} << 30, unit.memory_mib);
  section.number("memory_gbytes_per_second", 1, kMostBandwidth, unit.memory_gbytes_per_second);
  section.number("link_gbytes_per_second", 1, kMostBandwidth, unit.link_gbytes_per_second);
  section.integer("ranks", 1, 1024, unit.ranks);
  section.know("tflops");
  section.finish();
  if (const TomlValue* own = table.find(name); own != nullptr) read_peaks(*own, "tflops", reading, unit.peak);
  if (unit.memory_mib == 0 || unit.memory_gbytes_per_second == 0 || unit.peak.fp32 == 0) {
    reading.fail(section.origin(), fmt::format("accelerator {} lacks its memory, bandwidth or peak", name),
                 "write memory_mib, memory_gbytes_per_second, link_gbytes_per_second and tflops");
  }
  return unit;
}

Instance read_instance(const TomlValue& table, const std::string& type,
                       const std::map<std::string, Accelerator>& accelerators, SpecReading& reading) {
  Instance instance;
  instance.type = type;
  std::string accelerator;
  SectionReader section(table, type, reading);
  section.word("accelerator", "-", accelerator);
  section.integer("accelerators", 1, 1024, instance.accelerators);
  section.integer("vcpus", 1, 1 << 16, instance.vcpus);
  section.integer("threads_per_core", 1, 8, instance.threads_per_core);
  section.integer("memory_mib", 1, int64_t{1} << 40, instance.memory_mib);
  section.number("network_gbits_per_second", 0.01, kMostBandwidth, instance.network_gbits_per_second);
  section.integer("efa_interfaces", 0, 1024, instance.efa_interfaces);
  section.integer("network_cards", 1, 1024, instance.network_cards);
  section.know("cpu_tflops");
  section.finish();
  if (const TomlValue* own = table.find(type); own != nullptr)
    read_peaks(*own, "cpu_tflops", reading, instance.cpu_peak);
  if (instance.vcpus == 0 || instance.memory_mib == 0 || instance.network_gbits_per_second == 0) {
    reading.fail(section.origin(), fmt::format("instance {} lacks its CPUs, memory or network", type),
                 "write vcpus, memory_mib and network_gbits_per_second");
  }
  if (accelerator.empty() != (instance.accelerators == 0)) {
    reading.fail(section.origin(), fmt::format("instance {} has one of accelerator and accelerators", type),
                 "write both, or none");
  }
  if (accelerator.empty()) return instance;
  const auto found = accelerators.find(accelerator);
  if (found == accelerators.end()) {
    reading.fail(section.origin("accelerator"),
                 fmt::format("no accelerator \"{}\" is described", accelerator),
                 fmt::format("write a section [accelerator.{}]", accelerator));
    return instance;
  }
  instance.accelerator = found->second;
  return instance;
}

}  // namespace

const Instance* Catalogue::find(std::string_view type) const {
  const auto found = std::find_if(instances.begin(), instances.end(),
                                  [&](const Instance& instance) { return instance.type == type; });
  return found == instances.end() ? nullptr : &*found;
}

namespace {

// Returns the words of letters and digits in lower case.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char letter : base::lower_case(text)) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      words.back() += letter;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

}  // namespace

const Accelerator* Catalogue::find_accelerator(std::string_view device) const {
  const std::vector<std::string> said = words_of(device);
  const auto says = [&](const std::string& word) {
    return std::find(said.begin(), said.end(), word) != said.end();
  };
  if (says("pcie") || says("nvl")) return nullptr;
  for (const Instance& instance : instances) {
    if (!instance.accelerator || instance.accelerator->maker != "nvidia") continue;
    const std::vector<std::string> name = words_of(instance.accelerator->name);
    if (std::all_of(name.begin(), name.end(), says)) return &*instance.accelerator;
  }
  return nullptr;
}

std::vector<std::string> Catalogue::types() const {
  std::vector<std::string> names;
  for (const Instance& instance : instances) names.push_back(instance.type);
  return names;
}

Result<Catalogue> parse_catalogue(std::string_view text, std::string_view file_name) {
  ASSIGN_OR_RETURN(auto document, spec::parse_toml(text, file_name));
  SpecReading reading;
  reading.document = "a catalogue";
  SectionReader top(document, "", reading), units(document, "accelerator", reading),
      types(document, "instance", reading);
  top.know("accelerator");
  top.know("instance");
  top.finish();
  std::map<std::string, Accelerator> accelerators;
  for (const auto& member : units.members()) {
    accelerators[member.key] = read_accelerator(*document.find("accelerator"), member.key, reading);
  }
  Catalogue catalogue;
  for (const auto& member : types.members()) {
    catalogue.instances.push_back(
        read_instance(*document.find("instance"), member.key, accelerators, reading));
  }
  if (reading.error) return *reading.error;
  return catalogue;
}

Catalogue built_in_catalogue() {
  auto catalogue = parse_catalogue(built_in_instances(), "instances.toml");
  SHARDRUN_CHECK(catalogue.has_value());
  return std::move(catalogue).value();
}

}  // namespace shardrun::launcher
