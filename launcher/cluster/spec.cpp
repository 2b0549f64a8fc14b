#include "launcher/cluster/spec.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/spec/spec_reader.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::SectionReader;
using spec::SpecReading;
using spec::TomlValue;
using spec::Word;

constexpr size_t kLargestText = 1 << 20;

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns whether the text is "<prefix>-" and 8 or 17 hexadecimal digits, or only 17.
bool is_id(std::string_view text, std::string_view prefix, bool may_be_short) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  if (text.size() != 17 && !(may_be_short && text.size() == 8)) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// Returns whether the text has the form of "p5.48xlarge", "p6-b200.48xlarge", "hpc7a.96xlarge".
bool is_instance_type(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == text.size() || !is_lower(text[0])) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '-' || c == '.'; }) &&
         text.find('.', dot + 1) == std::string_view::npos;
}

// Reads a string and refuses it unless `fits`.
template <typename Fits>
void shaped(SectionReader& section, SpecReading& reading, std::string_view key, std::string& out, Fits fits,
            const std::string& mend) {
  section.text(key, out, 1024);
  if (!out.empty() && section.has(key) && !fits(out)) {
    reading.fail(section.origin(key), fmt::format("{} = \"{}\" is malformed", key, spec::printable(out)),
                 mend);
  }
}

// Does the same for each of an array of strings.
template <typename Fits>
void all_shaped(SectionReader& section, SpecReading& reading, std::string_view key,
                std::vector<std::string>& out, Fits fits, const std::string& mend) {
  section.texts(key, out);
  for (const std::string& item : out) {
    if (!fits(item))
      reading.fail(section.origin(key),
                   fmt::format("{} has \"{}\", which is malformed", key, spec::printable(item)), mend);
  }
}

constexpr const char* kSubnetMend = "write subnet- and the 8 or 17 hexadecimal digits behind it";
constexpr const char* kTypeMend = "write an EC2 type such as \"p5.48xlarge\"";
constexpr const char* kAmiMend = "write ami- and the 17 hexadecimal digits behind it";

bool is_subnet(std::string_view text) {
  return is_id(text, "subnet-", true);
}
bool is_security_group(std::string_view text) {
  return is_id(text, "sg-", true);
}
constexpr const char* kGroupMend = "write sg- and the 8 or 17 hexadecimal digits behind it";
bool is_ami(std::string_view text) {
  return is_id(text, "ami-", true);
}

void require(const SectionReader& section, SpecReading& reading, bool given, std::string_view what,
             const std::string& mend) {
  if (!given) reading.fail(section.origin(), fmt::format("{} is missing", what), mend);
}

bool is_bucket(std::string_view text) {
  return !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), [](char c) {
    return is_lower(c) || is_digit(c) || c == '-' || c == '.';
  });
}

bool is_region(std::string_view text) {
  return std::count(text.begin(), text.end(), '-') >= 2 && is_digit(text.back()) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

void read_top(const TomlValue& document, SpecReading& reading, ClusterConfig& config) {
  // The operating systems of ParallelCluster 3.16.
  constexpr Word<const char*> kSystems[] = {{"alinux2023", "alinux2023"}, {"ubuntu2204", "ubuntu2204"},
                                            {"ubuntu2404", "ubuntu2404"}, {"rhel8", "rhel8"},
                                            {"rhel9", "rhel9"},           {"rocky8", "rocky8"},
                                            {"rocky9", "rocky9"}};
  SectionReader top(document, "", reading);
  for (const char* section :
       {"head_node", "on_node_configured", "slurm", "accounting", "storage", "queue", "tags", "login_nodes"})
    top.know(section);
  top.text("name", config.name, 256);
  shaped(top, reading, "region", config.region, is_region, "write a region such as \"us-east-1\"");
  const char* os = "";
  top.choice("os", kSystems, os);
  config.os = os;
  shaped(top, reading, "custom_ami", config.custom_ami, is_ami, kAmiMend);
  all_shaped(top, reading, "s3_read", config.s3_read, is_bucket, "write a bucket's name, without s3://");
  all_shaped(top, reading, "s3_write", config.s3_write, is_bucket, "write a bucket's name, without s3://");
  all_shaped(
      top, reading, "policies", config.policies,
      [](std::string_view text) { return text.starts_with("arn:") && text.find(":policy/") != text.npos; },
      "write the ARN of an IAM policy, arn:aws:iam::…:policy/…");
  top.boolean("detailed_monitoring", config.detailed_monitoring);
  top.finish();
  require(top, reading, !config.name.empty(), "the cluster's name", "write name = \"p5\"");
  require(top, reading, !config.region.empty(), "the region", "write region = \"us-east-1\"");
  require(top, reading, !config.os.empty(), "the operating system", "write os = \"ubuntu2204\"");
}

void read_head(const TomlValue& document, SpecReading& reading, HeadNode& head) {
  SectionReader section(document, "head_node", reading);
  shaped(section, reading, "instance", head.instance, is_instance_type, kTypeMend);
  shaped(section, reading, "subnet", head.subnet, is_subnet, kSubnetMend);
  section.text("key", head.key, 255);
  section.integer("disk_gib", 45, 16384, head.disk_gib);
  all_shaped(section, reading, "security_groups", head.security_groups, is_security_group, kGroupMend);
  section.finish();
  require(section, reading, section.present(), "[head_node]",
          "write a section [head_node] with instance and subnet");
  require(section, reading, !head.instance.empty(), "head_node.instance", "write instance = \"m5.8xlarge\"");
  require(section, reading, !head.subnet.empty(), "head_node.subnet", "write subnet = \"subnet-…\"");
}

void read_login(const TomlValue& document, SpecReading& reading, ClusterConfig& config) {
  SectionReader section(document, "login_nodes", reading);
  if (!section.present()) return;
  LoginNodes login;
  shaped(section, reading, "instance", login.instance, is_instance_type, kTypeMend);
  shaped(section, reading, "subnet", login.subnet, is_subnet, kSubnetMend);
  section.text("key", login.key, 255);
  section.integer("count", 1, 100, login.count);
  all_shaped(section, reading, "security_groups", login.security_groups, is_security_group, kGroupMend);
  section.finish();
  require(section, reading, !login.instance.empty(), "login_nodes.instance",
          "write instance = \"c7i.xlarge\"");
  config.login = login;
}

void read_script(const TomlValue& document, SpecReading& reading, NodeScript& node) {
  SectionReader section(document, "on_node_configured", reading);
  const auto is_url = [](std::string_view text) {
    return text.starts_with("s3://") || text.starts_with("https://");
  };
  shaped(section, reading, "script", node.script, is_url,
         "write s3://bucket/path or https://host/path: nodes fetch it when they start");
  section.texts("args", node.arguments);
  section.finish();
  if (section.present())
    require(section, reading, !node.script.empty(), "on_node_configured.script",
            "write script = \"s3://bucket/on-node.sh\", or remove the section");
}

// Reads a table of names and strings, such as [tags].
void read_names(const TomlValue& table, const std::string& key, SpecReading& reading,
                std::map<std::string, std::string>& out) {
  SectionReader section(table, key, reading);
  for (const auto& member : section.members()) section.text(member.key, out[member.key]);
}

void read_slurm(const TomlValue& document, SpecReading& reading, SlurmSettings& slurm) {
  SectionReader section(document, "slurm", reading);
  section.integer("idle_minutes", -1, 525600, slurm.idle_minutes);
  section.know("settings");
  section.finish();
  const TomlValue* own = document.find("slurm");
  if (own != nullptr && own->kind == TomlValue::Kind::kTable)
    read_names(*own, "settings", reading, slurm.settings);
}

void read_accounting(const TomlValue& document, SpecReading& reading, ClusterConfig& config) {
  SectionReader section(document, "accounting", reading);
  if (!section.present()) return;
  Accounting accounting;
  const auto is_uri = [](std::string_view text) {
    return !text.starts_with('/') && text.find("//") == std::string_view::npos &&
           text.find(' ') == std::string_view::npos;
  };
  shaped(section, reading, "uri", accounting.uri, is_uri, "write host:port, without mysql://");
  section.text("user", accounting.user, 255);
  section.text("password_secret", accounting.password_secret, 2048);
  const std::string& secret = accounting.password_secret;
  if (!secret.empty() && (!secret.starts_with("arn:") || secret.find(":secret") == std::string::npos)) {
    // The value may be the password itself, so it is not quoted.
    reading.fail(section.origin("password_secret"), "accounting.password_secret is no ARN of a secret",
                 "write arn:aws:secretsmanager:…:secret:…; the password itself never stands here");
  }
  section.word("database", "_", accounting.database);
  section.finish();
  require(section, reading, !accounting.uri.empty(), "accounting.uri", "write uri = \"db.example.com:3306\"");
  require(section, reading, !accounting.user.empty(), "accounting.user", "write user = \"slurm\"");
  require(section, reading, !accounting.password_secret.empty(), "accounting.password_secret",
          "write password_secret = \"arn:aws:secretsmanager:…\"");
  config.accounting = accounting;
}

// Returns the tables of an array of tables, each under its label "name[3]"; another kind of value is refused.
std::vector<const TomlValue*> tables_of(const TomlValue& parent, std::string_view name,
                                        SpecReading& reading) {
  std::vector<const TomlValue*> tables;
  const TomlValue* array = parent.find(name);
  if (array == nullptr) return tables;
  const bool right = array->kind == TomlValue::Kind::kArray &&
                     std::all_of(array->items.begin(), array->items.end(),
                                 [](const TomlValue& item) { return item.kind == TomlValue::Kind::kTable; });
  if (!right) {
    reading.fail(array->origin, fmt::format("{} is no array of tables", name),
                 fmt::format("write a section [[{}]] for each", name));
    return tables;
  }
  for (const TomlValue& item : array->items) tables.push_back(&item);
  return tables;
}

Storage read_storage(const TomlValue& table, const std::string& label, SpecReading& reading) {
  constexpr Word<StorageKind> kKinds[] = {{"fsx_lustre", StorageKind::kFsxLustre},
                                          {"efs", StorageKind::kEfs},
                                          {"ebs", StorageKind::kEbs},
                                          {"fsx_openzfs", StorageKind::kFsxOpenZfs}};
  constexpr Word<const char*> kVolumes[] = {{"gp2", "gp2"}, {"gp3", "gp3"}, {"io1", "io1"},
                                            {"io2", "io2"}, {"st1", "st1"}, {"sc1", "sc1"}};
  constexpr Word<const char*> kDeployments[] = {{"SCRATCH_1", "SCRATCH_1"},
                                                {"SCRATCH_2", "SCRATCH_2"},
                                                {"PERSISTENT_1", "PERSISTENT_1"},
                                                {"PERSISTENT_2", "PERSISTENT_2"}};
  Storage storage;
  SectionReader section(SectionReader::Table{table}, label, reading);
  section.word("name", "_-", storage.name);
  section.choice("kind", kKinds, storage.kind);
  shaped(
      section, reading, "mount", storage.mount,
      [](std::string_view text) { return text.starts_with('/') && text.size() > 1 && text.back() != '/'; },
      "write an absolute folder such as \"/fsx\"");
  // What an id of each kind begins with, and whether it may have 8 digits.
  static constexpr std::pair<const char*, bool> kIds[] = {
      {"fs-", false}, {"fs-", true}, {"vol-", true}, {"fsvol-", false}};
  const auto [prefix, may_be_short] = kIds[static_cast<size_t>(storage.kind)];
  const char* const begins = prefix;
  const bool is_short = may_be_short;
  shaped(
      section, reading, "id", storage.id,
      [begins, is_short](std::string_view text) { return is_id(text, begins, is_short); },
      fmt::format("write {} and the {}17 hexadecimal digits behind it", begins, is_short ? "8 or " : ""));
  section.integer("capacity_gib", 1, int64_t{1} << 30, storage.capacity_gib);
  const char* deployment = "";
  section.choice("deployment", kDeployments, deployment);
  storage.deployment = deployment;
  const char* volume = "";
  section.choice("volume", kVolumes, volume);
  storage.volume = volume;
  section.integer("throughput", 1, 1 << 20, storage.throughput);
  section.boolean("keep", storage.keep);
  section.finish();
  require(section, reading, !storage.name.empty(), label + ".name", "write name = \"fsx\"");
  require(section, reading, section.has("kind"), label + ".kind",
          "write kind = \"fsx_lustre\", \"efs\", \"ebs\" or \"fsx_openzfs\"");
  require(section, reading, !storage.mount.empty(), label + ".mount", "write mount = \"/fsx\"");
  return storage;
}

// Reads the keys of a compute resource, which stand in the queue itself if it has one resource.
void read_resource(SectionReader& section, SpecReading& reading, ComputeResource& resource) {
  std::string one;
  shaped(section, reading, "instance", one, is_instance_type, kTypeMend);
  all_shaped(section, reading, "instances", resource.instances, is_instance_type, kTypeMend);
  section.integer("min_count", 0, 100000, resource.min_count);
  section.integer("max_count", 1, 100000, resource.max_count);
  section.number("spot_price", 0.0, 1e6, resource.spot_price);
  bool efa = false;
  section.boolean("efa", efa);
  if (section.has("efa")) resource.efa = efa;
  if (section.has("instance") && section.has("instances"))
    reading.fail(section.origin("instances"), "instance and instances are both given", "keep one of them");
  if (!one.empty()) resource.instances = {one};
}

void check_resource(const SectionReader& section, SpecReading& reading, const ComputeResource& resource) {
  require(section, reading, !resource.instances.empty(), resource.label + ".instance",
          "write instance = \"p5.48xlarge\"");
  require(section, reading, resource.max_count > 0, resource.label + ".max_count",
          "write max_count = 16: how many nodes there may be");
}

void read_resources(const TomlValue& table, SectionReader& section, SpecReading& reading, Queue& queue) {
  const auto tables = tables_of(table, "resource", reading);
  if (tables.empty()) {
    ComputeResource own;
    own.label = queue.label;
    own.name = queue.name;
    read_resource(section, reading, own);
    section.finish();
    check_resource(section, reading, own);
    queue.resources = {own};
    return;
  }
  section.finish();
  for (size_t i = 0; i < tables.size(); ++i) {
    ComputeResource resource;
    resource.label = fmt::format("{}.resource[{}]", queue.label, i);
    SectionReader own(SectionReader::Table{*tables[i]}, resource.label, reading);
    own.text("name", resource.name, 256);
    read_resource(own, reading, resource);
    own.finish();
    require(own, reading, !resource.name.empty(), resource.label + ".name", "write name = \"p5\"");
    check_resource(own, reading, resource);
    queue.resources.push_back(resource);
  }
}

void read_placement(const TomlValue& table, SectionReader& section, Queue& queue) {
  const TomlValue* given = table.find("placement_group");
  if (given != nullptr && given->kind == TomlValue::Kind::kString) {
    section.text("placement_group", queue.placement_group_name, 255);
    queue.placement_group = true;
    return;
  }
  bool enabled = false;
  section.boolean("placement_group", enabled);
  if (given != nullptr) queue.placement_group = enabled;
}

Queue read_queue(const TomlValue& table, const std::string& label, SpecReading& reading) {
  constexpr Word<Capacity> kKinds[] = {{"on_demand", Capacity::kOnDemand},
                                       {"spot", Capacity::kSpot},
                                       {"capacity_block", Capacity::kCapacityBlock}};
  Queue queue;
  queue.label = label;
  SectionReader section(SectionReader::Table{table}, label, reading);
  section.know("resource");
  section.text("name", queue.name, 256);
  section.choice("capacity", kKinds, queue.capacity);
  all_shaped(section, reading, "subnets", queue.subnets, is_subnet, kSubnetMend);
  shaped(
      section, reading, "reservation", queue.reservation,
      [](std::string_view text) { return is_id(text, "cr-", false); },
      "write cr- and the 17 hexadecimal digits behind it");
  shaped(
      section, reading, "reservation_group", queue.reservation_group,
      [](std::string_view text) {
        return text.starts_with("arn:") && text.find(":group/") != std::string_view::npos;
      },
      "write the ARN of a resource group, arn:aws:resource-groups:…:group/…");
  read_placement(table, section, queue);
  section.boolean("public_ip", queue.public_ip);
  all_shaped(section, reading, "security_groups", queue.security_groups, is_security_group, kGroupMend);
  section.boolean("exclusive", queue.exclusive);
  section.boolean("gpu_health_check", queue.gpu_health_check);
  shaped(section, reading, "custom_ami", queue.custom_ami, is_ami, kAmiMend);
  read_resources(table, section, reading, queue);
  require(section, reading, !queue.name.empty(), label + ".name", "write name = \"p5\"");
  require(section, reading, !queue.subnets.empty(), label + ".subnets", "write subnets = [\"subnet-…\"]");
  return queue;
}

}  // namespace

Result<ClusterConfig> parse_cluster(std::string_view text, std::string_view file_name) {
  if (text.size() > kLargestText) {
    return Error(Code::kInvalid, fmt::format("{}:1:1: the cluster spec has {} bytes; write at most {}",
                                             spec::printable_path(file_name), text.size(), kLargestText));
  }
  ASSIGN_OR_RETURN(auto document, spec::parse_toml(text, file_name));
  SpecReading reading;
  reading.document = "a cluster spec";
  reading.origins[""] = document.origin;
  for (const auto& member : document.members) reading.origins[member.key] = member.value.origin;
  ClusterConfig config;
  read_top(document, reading, config);
  read_head(document, reading, config.head);
  read_login(document, reading, config);
  read_script(document, reading, config.on_node_configured);
  read_slurm(document, reading, config.slurm);
  read_accounting(document, reading, config);
  const auto storages = tables_of(document, "storage", reading);
  for (size_t i = 0; i < storages.size(); ++i)
    config.storage.push_back(read_storage(*storages[i], fmt::format("storage[{}]", i), reading));
  const auto queues = tables_of(document, "queue", reading);
  for (size_t i = 0; i < queues.size(); ++i) {
    const std::string label = fmt::format("queue[{}]", i);
    reading.origins[label] = queues[i]->origin;
    config.queues.push_back(read_queue(*queues[i], label, reading));
  }
  read_names(document, "tags", reading, config.tags);
  if (config.queues.empty()) {
    reading.fail(document.origin, "the cluster has no queue",
                 "write a section [[queue]] with name, instance, max_count and subnets");
  }
  if (reading.error) return *reading.error;
  config.origins = std::move(reading.origins);
  return config;
}

}  // namespace shardrun::launcher
