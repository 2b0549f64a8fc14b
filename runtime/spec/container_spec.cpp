#include "runtime/spec/container_spec.h"

#include <fmt/format.h>

namespace shardrun::spec {
namespace {

std::vector<std::string> split_at_colons(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_mount(const std::string& text) {
  const auto parts = split_at_colons(text);
  if (parts.size() > 3 || (parts.size() == 3 && parts[2] != "ro")) return false;
  for (size_t i = 0; i < std::min<size_t>(parts.size(), 2); ++i)
    if (!parts[i].starts_with('/') || !can_be_mounted(parts[i])) return false;
  return true;
}

}  // namespace

Mount parse_mount(const std::string& text) {
  const auto parts = split_at_colons(text);
  return {parts[0], parts.size() > 1 ? parts[1] : parts[0], parts.size() > 2};
}

bool can_be_mounted(const std::string& path) {
  return path.find_first_of(":,") == std::string::npos;
}

void read_container(const TomlValue& document, bool is_command, SpecReading& reading,
                    ContainerSpec& container) {
  constexpr Word<ContainerRuntime> kRuntimes[] = {{"auto", ContainerRuntime::kAuto},
                                                  {"apptainer", ContainerRuntime::kApptainer},
                                                  {"singularity", ContainerRuntime::kSingularity},
                                                  {"charliecloud", ContainerRuntime::kCharliecloud},
                                                  {"pyxis", ContainerRuntime::kPyxis}};
  SectionReader section(document, "container", reading);
  section.text("image", container.image);
  section.choice("runtime", kRuntimes, container.runtime);
  section.texts("mounts", container.mounts);
  section.texts("arguments", container.arguments);
  section.finish();
  if (!section.present()) return;
  if (!is_command && container.runtime != ContainerRuntime::kPyxis) {
    reading.fail(section.origin(), "[container] has no effect on the built-in trainer",
                 "remove the section, for what the trainer needs is on the nodes already, or write runtime = "
                 "\"pyxis\"");
  } else if (container.image.empty()) {
    reading.fail(section.origin(), "[container] has no image", "write image = \"/path/to/image.sif\"");
  } else if (container.image.starts_with('-')) {
    reading.fail(section.origin("image"), "container.image would be taken for an option",
                 "write ./ before it");
  }
  for (size_t i = 0; i < container.mounts.size(); ++i) {
    if (is_mount(container.mounts[i])) continue;
    reading.fail(
        origin_of(reading.origins, fmt::format("container.mounts[{}]", i)),
        fmt::format("\"{}\" is not a mount", printable(container.mounts[i])),
        "write \"/source\", \"/source:/target\" or \"/source:/target:ro\", without other colons or commas");
  }
  if (container.runtime == ContainerRuntime::kPyxis && !container.arguments.empty()) {
    reading.fail(section.origin("arguments"), "pyxis has no arguments of its own",
                 "give srun its --container-… options");
  }
}

}  // namespace shardrun::spec
