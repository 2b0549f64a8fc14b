#include "runtime/spec/environment_rules.h"

#include <string_view>

#include <fmt/format.h>

#include "runtime/spec/secrets.h"

namespace shardrun::spec {
namespace {

bool is_variable_name(std::string_view name) {
  if (name.empty() || name.size() > 256 || (name.front() >= '0' && name.front() <= '9')) return false;
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
      return false;
  }
  return true;
}

// Says whether a variable tells a rank who it is: one value for all ranks would be wrong for all but one.
bool is_set_by_shardrun(std::string_view name) {
  if (name.starts_with("SHARDRUN_")) return true;
  for (const std::string_view own :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "SLURM_PROCID", "SLURM_LOCALID",
        "SLURM_NODEID", "SLURM_NTASKS"}) {
    if (name == own) return true;
  }
  return false;
}

void read_environment_reference(const std::string& name, const TomlValue& document_entry,
                                SpecReading& reading, EnvironmentValue& value) {
  TomlValue holder;  // lets SectionReader read the inline table as a section of its own
  holder.origin = document_entry.origin;
  holder.members.emplace_back("environment." + name, document_entry);
  SectionReader reference(holder, "environment." + name, reading);
  std::string variable, file;
  reference.text("from_env", variable, 256);
  reference.text("from_file", file);
  reference.finish();
  if (variable.empty() == file.empty()) {
    reading.fail(document_entry.origin, fmt::format("environment.{} needs exactly one source", name),
                 "write { from_env = \"NAME\" } or { from_file = \"/path\" }");
  } else if (!variable.empty() && !is_variable_name(variable)) {
    reading.fail(document_entry.origin, fmt::format("\"{}\" is not a variable's name", printable(variable)),
                 "use letters, digits and _");
  }
  value = variable.empty() ? EnvironmentValue{EnvironmentValue::Kind::kFromFile, file}
                           : EnvironmentValue{EnvironmentValue::Kind::kFromVariable, variable};
}

void read_variable(SectionReader& section, const TomlMember& member, SpecReading& reading,
                   EnvironmentValue& value) {
  const std::string& name = member.key;
  const TomlValue& given = member.value;
  if (!is_variable_name(name)) {
    reading.fail(given.origin, fmt::format("\"{}\" is not a variable's name", printable(name)),
                 "use letters, digits and _, and begin with a letter");
  } else if (is_set_by_shardrun(name)) {
    reading.fail(given.origin, fmt::format("shardrun sets {} itself, for each rank its own", name),
                 "remove it, or choose another name");
  } else if (given.kind == TomlValue::Kind::kTable) {
    read_environment_reference(name, given, reading, value);
  } else if (looks_secret(name) || !password_in_url(given.text).empty() ||
             given.text.find("PRIVATE KEY-----") != std::string::npos) {
    reading.fail(
        given.origin, fmt::format("environment.{} looks like a secret written out", name),
        fmt::format("write {} = {{ from_env = \"{}\" }} or {{ from_file = \"/path\" }}", name, name));
  } else if (given.kind != TomlValue::Kind::kString || !given.text.empty()) {  // "" is a value like any other
    section.text(name, value.text, 32 * 1024);
  }
}

}  // namespace

void read_environment(const TomlValue& document, SpecReading& reading,
                      std::map<std::string, EnvironmentValue>& environment) {
  constexpr size_t kMostVariables = 1000;
  SectionReader section(document, "environment", reading);
  if (section.members().size() > kMostVariables) {
    reading.fail(section.origin(), fmt::format("[environment] has {} variables", section.members().size()),
                 fmt::format("write at most {}, or a file that the program reads", kMostVariables));
  }
  for (const auto& member : section.members()) {
    if (reading.error) return;
    reading.origins["environment." + member.key] = member.value.origin;
    read_variable(section, member, reading, environment[member.key]);
  }
}

}  // namespace shardrun::spec
