#include "launcher/cluster/pcluster_yaml.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/cluster/rules.h"
#include "launcher/cluster/yaml.h"

namespace shardrun::launcher {
namespace {

void add_script(Yaml& node, const ClusterConfig& config) {
  const NodeScript& script = config.on_node_configured;
  if (script.script.empty()) return;
  Yaml action = Yaml::map().set("Script", script.script);
  if (!script.arguments.empty()) action.set("Args", Yaml::list(script.arguments));
  node.set("CustomActions", Yaml::map().set("OnNodeConfigured", action));
}

// The node's script lies in a bucket, and so may data; a pool of login nodes takes the policies alone.
void add_access(Yaml& node, const ClusterConfig& config, bool is_login = false) {
  Yaml access = Yaml::list(), policies = Yaml::list(), iam = Yaml::map();
  for (const std::string& bucket : config.s3_read) access.add(Yaml::map().set("BucketName", bucket));
  for (const std::string& bucket : config.s3_write)
    access.add(Yaml::map().set("BucketName", bucket).set("EnableWriteAccess", true));
  for (const std::string& policy : config.policies) policies.add(Yaml::map().set("Policy", policy));
  if (!access.empty() && !is_login) iam.set("S3Access", access);
  if (!policies.empty()) iam.set("AdditionalIamPolicies", policies);
  if (!iam.empty()) node.set("Iam", iam);
}

void add_security_groups(Yaml& networking, const std::vector<std::string>& groups) {
  if (!groups.empty()) networking.set("AdditionalSecurityGroups", Yaml::list(groups));
}

Yaml head_node(const ClusterConfig& config) {
  const HeadNode& head = config.head;
  Yaml node = Yaml::map();
  node.set("InstanceType", head.instance);
  Yaml networking = Yaml::map().set("SubnetId", head.subnet);
  add_security_groups(networking, head.security_groups);
  node.set("Networking", networking);
  if (!head.key.empty()) node.set("Ssh", Yaml::map().set("KeyName", head.key));
  if (head.disk_gib > 0)
    node.set("LocalStorage", Yaml::map().set("RootVolume", Yaml::map().set("Size", head.disk_gib)));
  add_script(node, config);
  add_access(node, config);
  return node;
}

Yaml login_nodes(const ClusterConfig& config) {
  const LoginNodes& login = *config.login;
  const std::string& key = login.key.empty() ? config.head.key : login.key;
  Yaml networking = Yaml::map();
  networking.set("SubnetIds", Yaml::list({login.subnet.empty() ? config.head.subnet : login.subnet}));
  add_security_groups(networking, login.security_groups);
  Yaml pool = Yaml::map();
  pool.set("Name", "login").set("InstanceType", login.instance).set("Count", login.count);
  pool.set("Networking", networking);
  if (!key.empty()) pool.set("Ssh", Yaml::map().set("KeyName", key));
  add_script(pool, config);
  add_access(pool, config, /*is_login=*/true);
  return Yaml::map().set("Pools", Yaml::list().add(pool));
}

Yaml compute_resource(const Queue& queue, const ComputeResource& resource, const Catalogue& catalogue) {
  Yaml node = Yaml::map();
  node.set("Name", resource.name);
  if (resource.instances.size() == 1 && queue.subnets.size() == 1) {
    node.set("InstanceType", resource.instances.front());
  } else {  // several types, or several subnets, take the other form
    Yaml types = Yaml::list();
    for (const std::string& type : resource.instances) types.add(Yaml::map().set("InstanceType", type));
    node.set("Instances", types);
  }
  node.set("MinCount", resource.min_count);
  node.set("MaxCount", resource.max_count);
  if (resource.spot_price > 0.0) node.set("SpotPrice", resource.spot_price);
  if (uses_efa(queue, resource, catalogue)) node.set("Efa", Yaml::map().set("Enabled", true));
  return node;
}

// EFA nodes must say whether they want a placement group. A reservation may have a group of its own, a capacity
// block always has one.
void add_placement(Yaml& networking, const Queue& queue, bool efa) {
  const bool reserved = !queue.reservation.empty() || !queue.reservation_group.empty();
  if (queue.capacity == Capacity::kCapacityBlock || (!efa && !queue.placement_group)) return;
  Yaml group = Yaml::map();
  if (!queue.placement_group_name.empty()) {
    group.set("Name", queue.placement_group_name);
  } else {
    group.set("Enabled", queue.placement_group.value_or(!reserved));
  }
  networking.set("PlacementGroup", group);
}

Yaml queue_node(const Queue& queue, const ClusterConfig& config, const Catalogue& catalogue) {
  static constexpr const char* kCapacities[] = {"ONDEMAND", "SPOT", "CAPACITY_BLOCK"};
  const bool efa = std::any_of(queue.resources.begin(), queue.resources.end(),
                               [&](const auto& resource) { return uses_efa(queue, resource, catalogue); });
  Yaml node = Yaml::map();
  node.set("Name", queue.name);
  node.set("CapacityType", kCapacities[static_cast<size_t>(queue.capacity)]);
  if (!queue.reservation.empty())
    node.set("CapacityReservationTarget", Yaml::map().set("CapacityReservationId", queue.reservation));
  if (!queue.reservation_group.empty())
    node.set("CapacityReservationTarget",
             Yaml::map().set("CapacityReservationResourceGroupArn", queue.reservation_group));
  Yaml networking = Yaml::map();
  networking.set("SubnetIds", Yaml::list(queue.subnets));
  if (queue.public_ip) networking.set("AssignPublicIp", true);
  add_security_groups(networking, queue.security_groups);
  add_placement(networking, queue, efa);
  node.set("Networking", networking);
  if (!queue.custom_ami.empty()) node.set("Image", Yaml::map().set("CustomAmi", queue.custom_ami));
  if (queue.exclusive) node.set("JobExclusiveAllocation", true);
  if (queue.gpu_health_check)
    node.set("HealthChecks", Yaml::map().set("Gpu", Yaml::map().set("Enabled", true)));
  add_script(node, config);
  add_access(node, config);
  Yaml resources = Yaml::list();
  for (const ComputeResource& resource : queue.resources)
    resources.add(compute_resource(queue, resource, catalogue));
  node.set("ComputeResources", resources);
  return node;
}

Yaml scheduling(const ClusterConfig& config, const Catalogue& catalogue) {
  Yaml settings = Yaml::map();
  settings.set("ScaledownIdletime", config.slurm.idle_minutes);
  if (config.accounting) {
    Yaml database = Yaml::map();
    database.set("Uri", config.accounting->uri);
    database.set("UserName", config.accounting->user);
    database.set("PasswordSecretArn", config.accounting->password_secret);
    if (!config.accounting->database.empty()) database.set("DatabaseName", config.accounting->database);
    settings.set("Database", database);
  }
  Yaml custom = Yaml::list();
  for (const auto& [key, value] : config.slurm.settings) custom.add(Yaml::map().set(key, value));
  if (!custom.empty()) settings.set("CustomSlurmSettings", custom);
  Yaml queues = Yaml::list();
  for (const Queue& queue : config.queues) queues.add(queue_node(queue, config, catalogue));
  return Yaml::map().set("Scheduler", "slurm").set("SlurmSettings", settings).set("SlurmQueues", queues);
}

Yaml lustre_settings(const Storage& storage) {
  Yaml settings = Yaml::map();
  if (!storage.id.empty()) return settings.set("FileSystemId", storage.id);
  settings.set("StorageCapacity", storage.capacity_gib);
  settings.set("DeploymentType", storage.deployment.empty() ? "SCRATCH_2" : storage.deployment);
  if (storage.throughput > 0) settings.set("PerUnitStorageThroughput", storage.throughput);
  settings.set("DeletionPolicy", storage.keep ? "Retain" : "Delete");
  return settings;
}

Yaml efs_settings(const Storage& storage) {
  Yaml settings = Yaml::map();
  if (!storage.id.empty()) return settings.set("FileSystemId", storage.id);
  if (storage.throughput > 0)
    settings.set("ThroughputMode", "provisioned").set("ProvisionedThroughput", storage.throughput);
  settings.set("DeletionPolicy", storage.keep ? "Retain" : "Delete");
  return settings;
}

Yaml ebs_settings(const Storage& storage) {
  Yaml settings = Yaml::map();
  if (!storage.id.empty()) return settings.set("VolumeId", storage.id);
  settings.set("VolumeType", storage.volume.empty() ? "gp3" : storage.volume);
  settings.set("Size", storage.capacity_gib).set("Encrypted", true);
  if (storage.throughput > 0) settings.set("Throughput", storage.throughput);
  return settings.set("DeletionPolicy", storage.keep ? "Retain" : "Delete");
}

Yaml storage_node(const Storage& storage) {
  const auto node = [&](const std::string& type, const Yaml& settings) {
    return Yaml::map()
        .set("Name", storage.name)
        .set("StorageType", type)
        .set("MountDir", storage.mount)
        .set(type + "Settings", settings);
  };
  switch (storage.kind) {
    case StorageKind::kFsxLustre:
      return node("FsxLustre", lustre_settings(storage));
    case StorageKind::kEfs:
      return node("Efs", efs_settings(storage));
    case StorageKind::kEbs:
      return node("Ebs", ebs_settings(storage));
    case StorageKind::kFsxOpenZfs:
      break;
  }
  return node("FsxOpenZfs", Yaml::map().set("VolumeId", storage.id));
}

}  // namespace

std::string render_pcluster(const ClusterConfig& config, const Catalogue& catalogue,
                            std::string_view origin) {
  Yaml root = Yaml::map();
  root.set("Region", config.region);
  Yaml image = Yaml::map();
  image.set("Os", config.os);
  if (!config.custom_ami.empty()) image.set("CustomAmi", config.custom_ami);
  root.set("Image", image);
  root.set("HeadNode", head_node(config));
  if (config.login) root.set("LoginNodes", login_nodes(config));
  root.set("Scheduling", scheduling(config, catalogue));
  Yaml storages = Yaml::list();
  for (const Storage& storage : config.storage) storages.add(storage_node(storage));
  if (!storages.empty()) root.set("SharedStorage", storages);
  if (config.detailed_monitoring) root.set("Monitoring", Yaml::map().set("DetailedMonitoring", true));
  Yaml tags = Yaml::list();
  for (const auto& [key, value] : config.tags) tags.add(Yaml::map().set("Key", key).set("Value", value));
  if (!tags.empty()) root.set("Tags", tags);
  return fmt::format("# Cluster {}: rendered by shardrun cluster render from {}\n{}", config.name, origin,
                     root.to_text());
}

}  // namespace shardrun::launcher
