#include "launcher/cluster/rules.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "launcher/cluster/storage_rules.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/spec/spec_reader.h"

namespace shardrun::launcher {
namespace {

using base::Result;
using spec::SpecReading;

constexpr size_t kMostQueues = 50, kMostResources = 50, kMostTags = 40;
constexpr size_t kLongestName = 25, kLongestCluster = 60, kLongestWithAccounting = 40;

class Rules {
 public:
  Rules(const ClusterConfig& config, const Catalogue& catalogue) : config_(config), catalogue_(catalogue) {}

  Result<void> check() {
    cluster_name();
    tags();
    login();
    slurm_settings();
    check_storage(config_, reading_);
    queues();
    if (reading_.error) return *reading_.error;
    return {};
  }

 private:
  void fail(const std::string& key, const std::string& what, const std::string& mend) {
    reading_.fail(spec::origin_of(config_.origins, key), what, mend);
  }

  void cluster_name() {
    const std::string& name = config_.name;
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    const bool clean = std::all_of(name.begin(), name.end(),
                                   [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; });
    if (!letter(name.front()) || !clean) {
      fail("name", fmt::format("\"{}\" is no name of a cluster", spec::printable(name)),
           "use letters, digits and -, and begin with a letter");
    }
    if (name.size() < 2) fail("name", "the cluster's name has one character", "write at least 2");
    const size_t most = config_.accounting ? kLongestWithAccounting : kLongestCluster;
    if (name.size() > most) {
      fail("name", fmt::format("the cluster's name has {} characters", name.size()),
           fmt::format("write at most {}{}", most,
                       config_.accounting ? ", because accounting makes database tables of it" : ""));
    }
  }

  void tags() {
    if (config_.tags.size() > kMostTags)
      fail("tags", fmt::format("there are {} tags", config_.tags.size()),
           fmt::format("write at most {}", kMostTags));
    for (const auto& [key, value] : config_.tags) {
      const std::string place = "tags." + key;
      if (key.starts_with("aws:") || key.starts_with("parallelcluster:"))
        fail(place, fmt::format("the tag \"{}\" begins as AWS's own do", spec::printable(key)),
             "choose another name");
      if (key.size() > 128 || value.size() > 256)
        fail(place, fmt::format("the tag \"{}\" is too long", spec::printable(key)),
             "write at most 128 characters of name and 256 of value");
    }
  }

  // ParallelCluster gives the buckets of s3_read to the head node and the queues alone, and a login node that cannot fetch its
  // script shuts itself down.
  void login() {
    if (config_.login && config_.on_node_configured.script.starts_with("s3://") && config_.policies.empty())
      fail("login_nodes.instance",
           "login nodes have no access from s3_read, and could not fetch the script of [on_node_configured]",
           "write policies = [\"arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess\"], or one that reads the "
           "bucket");
  }

  // ParallelCluster writes these itself and refuses to have them set.
  void slurm_settings() {
    static constexpr std::string_view kOwn[] = {
        "epilog",        "grestypes",         "launchparameters",    "prolog",
        "reconfigflags", "resumefailprogram", "resumeprogram",       "resumetimeout",
        "slurmctldhost", "slurmctldlogfile",  "slurmctldparameters", "slurmdlogfile",
        "slurmuser",     "suspendexcnodes",   "suspendprogram",      "suspendtime",
        "taskplugin",    "treewidth"};
    static constexpr std::string_view kAccounting[] = {"accountingstoragetype", "accountingstoragehost",
                                                       "accountingstorageport", "accountingstorageuser",
                                                       "jobacctgathertype"};
    for (const auto& [key, value] : config_.slurm.settings) {
      const std::string lower = base::lower_case(key);
      const std::string place = "settings." + key;
      if (lower == "prolog" || lower == "epilog") {
        fail(place, fmt::format("ParallelCluster sets {} itself", key),
             fmt::format("remove it, and put scripts into /opt/slurm/etc/scripts/{}.d on the head node",
                         lower));
      } else if (std::find(std::begin(kOwn), std::end(kOwn), lower) != std::end(kOwn)) {
        fail(place, fmt::format("ParallelCluster sets {} itself", key),
             lower == "suspendtime" ? "remove it, and write idle_minutes" : "remove it");
      }
      if (config_.accounting &&
          std::find(std::begin(kAccounting), std::end(kAccounting), lower) != std::end(kAccounting))
        fail(place, fmt::format("[accounting] sets {}", key), "remove it, or the section [accounting]");
    }
  }

  void queues() {
    if (config_.queues.size() > kMostQueues)
      fail(config_.queues.back().label, fmt::format("there are {} queues", config_.queues.size()),
           fmt::format("write at most {}", kMostQueues));
    std::set<std::string> names;
    size_t resources = 0;
    for (const Queue& queue : config_.queues) {
      name_of(queue.label + ".name", "queue", queue.name);
      if (!names.insert(queue.name).second)
        fail(queue.label + ".name", fmt::format("there are two queues \"{}\"", spec::printable(queue.name)),
             "give each its own name");
      resources += queue.resources.size();
      this->queue(queue);
    }
    if (resources > kMostResources)
      fail("queue", fmt::format("there are {} compute resources", resources),
           fmt::format("write at most {} in a cluster", kMostResources));
  }

  void name_of(const std::string& place, const char* kind, const std::string& name) {
    const bool clean = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    if (!clean || name.empty() || name.front() < 'a' || name.front() > 'z')
      fail(place, fmt::format("\"{}\" is no name of a {}", spec::printable(name), kind),
           "use small letters, digits and -, and begin with a letter");
    if (name.size() > kLongestName)
      fail(place, fmt::format("the name of the {} has {} characters", kind, name.size()),
           fmt::format("write at most {}", kLongestName));
    if (name == "default")
      fail(place, fmt::format("no {} may be called \"default\"", kind), "choose another name");
  }

  void queue(const Queue& queue) {
    const std::set<std::string> subnets(queue.subnets.begin(), queue.subnets.end());
    if (subnets.size() < queue.subnets.size())
      fail(queue.label + ".subnets", "a subnet is named twice", "name each once");
    reservation(queue);
    placement(queue);
    std::set<std::string> names;
    for (const ComputeResource& resource : queue.resources) {
      name_of(resource.label + ".name", "compute resource", resource.name);
      if (!names.insert(resource.name).second)
        fail(resource.label + ".name",
             fmt::format("the queue has two resources \"{}\"", spec::printable(resource.name)),
             "give each its own name");
      counts(queue, resource);
      types(queue, resource);
      network(queue, resource);
    }
  }

  void reservation(const Queue& queue) {
    const bool reserved = !queue.reservation.empty() || !queue.reservation_group.empty();
    if (!queue.reservation.empty() && !queue.reservation_group.empty())
      fail(queue.label + ".reservation_group", "reservation and reservation_group are both given",
           "keep one of them");
    if (queue.capacity == Capacity::kCapacityBlock && queue.reservation.empty())
      fail(queue.label + ".capacity", "a capacity block is reached by its reservation, and none is given",
           "write reservation = \"cr-…\"");
    if (queue.capacity == Capacity::kSpot && reserved)
      fail(queue.label + ".capacity", "spot nodes never come from a reservation or a capacity block",
           "write capacity = \"on_demand\" or \"capacity_block\", or remove the reservation");
    if (reserved && queue.subnets.size() > 1)
      fail(queue.label + ".subnets", "a reservation lies in one availability zone, and the queue has several",
           "keep the subnet of its zone");
  }

  void placement(const Queue& queue) {
    if (!queue.placement_group || !*queue.placement_group) return;
    if (queue.subnets.size() > 1)
      fail(queue.label + ".placement_group",
           "a placement group lies in one availability zone, and the queue has several subnets",
           "keep one subnet, or write placement_group = false");
    if (queue.capacity == Capacity::kCapacityBlock)
      fail(queue.label + ".placement_group", "a capacity block brings its own placement",
           "remove placement_group");
  }

  void counts(const Queue& queue, const ComputeResource& resource) {
    if (resource.min_count > resource.max_count)
      fail(resource.label + ".min_count",
           fmt::format("min_count {} is above max_count {}", resource.min_count, resource.max_count),
           fmt::format("write at most {}", resource.max_count));
    if (resource.spot_price > 0.0 && queue.capacity != Capacity::kSpot)
      fail(resource.label + ".spot_price", "only spot nodes have a highest price",
           "write capacity = \"spot\" in the queue, or remove it");
    if (queue.capacity != Capacity::kCapacityBlock) return;
    if (resource.min_count != resource.max_count)
      fail(resource.label + ".min_count",
           fmt::format("a capacity block is paid for whole, and min_count {} is not max_count {}",
                       resource.min_count, resource.max_count),
           fmt::format("write min_count = {}", resource.max_count));
  }

  void types(const Queue& queue, const ComputeResource& resource) {
    const std::set<std::string> once(resource.instances.begin(), resource.instances.end());
    if (once.size() < resource.instances.size())
      fail(resource.label + ".instances", "a type is named twice", "name each once");
    if (queue.capacity == Capacity::kCapacityBlock && resource.instances.size() > 1)
      fail(resource.label + ".instances", "a capacity block is of one type", "write instance = \"…\"");
    const Instance* first = nullptr;
    for (const std::string& type : resource.instances) {
      const Instance* known = catalogue_.find(type);
      if (known == nullptr) continue;
      if (first == nullptr) first = known;
      if (known->vcpus != first->vcpus || known->accelerators != first->accelerators)
        fail(resource.label + ".instances",
             fmt::format("{} and {} differ in CPUs or accelerators, and one resource has nodes of one shape",
                         first->type, known->type),
             "make a resource of each");
    }
    const bool has_gpu = first == nullptr || (first->accelerator && first->accelerator->maker == "nvidia");
    if (queue.gpu_health_check && !has_gpu)
      fail(queue.label + ".gpu_health_check", fmt::format("{} has no NVIDIA GPU to check", first->type),
           "remove gpu_health_check");
  }

  void network(const Queue& queue, const ComputeResource& resource) {
    const bool efa = uses_efa(queue, resource, catalogue_);
    for (const std::string& type : resource.instances) {
      const Instance* known = catalogue_.find(type);
      if (efa && known == nullptr) {
        fail(resource.label + ".efa", fmt::format("whether {} has EFA is not known", type),
             "choose a type of cluster-configs/instances.toml, or write efa = false");
      } else if (efa && known->efa_interfaces == 0) {
        fail(resource.label + ".efa", fmt::format("{} has no EFA", type),
             fmt::format("write efa = false, or choose a type with EFA such as {}", efa_type_like(*known)));
      }
      if (queue.public_ip && known != nullptr && (known->network_cards > 1 || efa))
        fail(queue.label + ".public_ip",
             fmt::format(
                 "{} starts with several network interfaces, and EC2 gives such nodes no public address",
                 type),
             "remove public_ip, and use a private subnet with a NAT gateway");
    }
    if (efa && queue.subnets.size() > 1)
      fail(resource.label + ".efa",
           "EFA does not cross availability zones, and the queue has several subnets",
           "keep one subnet, or write efa = false");
  }

  // Returns a type with EFA that has the same accelerator as `instance`, or also has none.
  std::string efa_type_like(const Instance& instance) const {
    const auto name = [](const Instance& one) { return one.accelerator ? one.accelerator->name : ""; };
    for (const Instance& other : catalogue_.instances) {
      if (other.efa_interfaces > 0 && name(other) == name(instance)) return other.type;
    }
    return "c7i.48xlarge";
  }

  const ClusterConfig& config_;
  const Catalogue& catalogue_;
  SpecReading reading_;
};

}  // namespace

bool uses_efa(const Queue& queue, const ComputeResource& resource, const Catalogue& catalogue) {
  if (resource.efa) return *resource.efa;
  return queue.subnets.size() == 1 &&
         std::all_of(resource.instances.begin(), resource.instances.end(), [&](const std::string& type) {
           const Instance* known = catalogue.find(type);
           return known != nullptr && known->efa_interfaces > 0;
         });
}

Result<ClusterConfig> load_cluster(const std::string& path) {
  constexpr uint64_t kLargest = 1 << 20;
  auto text = base::read_file(path, kLargest);
  if (!text) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}:1:1: {}; name a readable cluster spec of at most {} bytes",
                                   spec::printable_path(path), text.error().to_string(), kLargest));
  }
  auto config = parse_cluster(*text, path);
  if (!config) return config;
  RETURN_IF_ERROR(check_cluster(*config, built_in_catalogue()));
  return config;
}

Result<void> check_cluster(const ClusterConfig& config, const Catalogue& catalogue) {
  return Rules(config, catalogue).check();
}

}  // namespace shardrun::launcher
