#include "launcher/cluster/storage_rules.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using spec::SpecReading;

constexpr size_t kLongestStorageName = 30;
constexpr int kMostExisting = 20, kMostDisks = 5;

class StorageRules {
 public:
  StorageRules(const ClusterConfig& config, SpecReading& reading) : config_(config), reading_(reading) {}

  void check() {
    std::set<std::string> names;
    for (size_t i = 0; i < config_.storage.size(); ++i) {
      const Storage& storage = config_.storage[i];
      label_ = fmt::format("storage[{}]", i);
      if (storage.name.size() > kLongestStorageName || storage.name == "default")
        fail("name", fmt::format("\"{}\" is no name of a file system", storage.name),
             fmt::format("write at most {} characters, and not \"default\"", kLongestStorageName));
      if (!names.insert(storage.name).second)
        fail("name", fmt::format("there are two file systems \"{}\"", storage.name),
             "give each its own name");
      mount(storage, i);
      number(storage);
      kind_of_keys(storage);
      if (!storage.id.empty()) {
        existing(storage);
      } else if (storage.kind == StorageKind::kEbs) {
        new_ebs(storage);
      } else if (storage.kind == StorageKind::kFsxOpenZfs) {
        fail("kind", "ParallelCluster mounts volumes of OpenZFS and makes none",
             "make it beforehand, and write id = \"fsvol-…\"");
      } else if (storage.kind == StorageKind::kFsxLustre) {
        new_lustre(storage);
      } else {
        new_efs(storage);
      }
    }
  }

 private:
  void fail(const std::string& key, const std::string& what, const std::string& mend) {
    reading_.fail(spec::origin_of(config_.origins, label_ + "." + key), what, mend);
  }

  void mount(const Storage& storage, size_t own) {
    static constexpr std::string_view kReserved[] = {
        "/bin",      "/boot",  "/dev", "/etc",  "/lib",
        "/lib64",    "/media", "/mnt", "/opt",  "/opt/parallelcluster",
        "/proc",     "/root",  "/run", "/sbin", "/srv",
        "/sys",      "/tmp",   "/usr", "/var",  "/opt/slurm",
        "/opt/intel"};
    if (std::find(std::begin(kReserved), std::end(kReserved), storage.mount) != std::end(kReserved))
      fail("mount", fmt::format("{} belongs to the system", storage.mount),
           "choose another folder, e.g. \"/fsx\"");
    if (storage.mount == "/scratch")
      fail("mount", "/scratch is where nodes mount their own disks", "choose another folder, e.g. \"/fsx\"");
    for (size_t i = 0; i < own; ++i) {
      const std::string& other = config_.storage[i].mount;
      if (other == storage.mount)
        fail("mount", fmt::format("two file systems are mounted at {}", other), "give each its own folder");
      if (other.starts_with(storage.mount + "/") || storage.mount.starts_with(other + "/"))
        fail("mount", fmt::format("{} and {} lie in one another", other, storage.mount),
             "choose folders side by side");
    }
  }

  void number(const Storage& storage) {
    int made = 0, found = 0;
    for (const Storage& other : config_.storage) {
      if (other.kind == storage.kind) ++(other.id.empty() ? made : found);
      if (&other == &storage) break;
    }
    static constexpr const char* kKinds[] = {"FSx", "EFS", "EBS", "OpenZFS"};
    const char* kind = kKinds[static_cast<size_t>(storage.kind)];
    if (storage.kind == StorageKind::kEbs) {
      if (made + found > kMostDisks)
        fail("kind", fmt::format("a cluster mounts at most {} disks of EBS", kMostDisks), "remove some");
      return;
    }
    if (storage.id.empty() && made > 1)
      fail("kind", fmt::format("a cluster makes at most one file system of {}", kind),
           "make the other beforehand, and write its id");
    if (found > kMostExisting)
      fail("id", fmt::format("a cluster mounts at most {} file systems of {}", kMostExisting, kind),
           "remove some");
  }

  void existing(const Storage& storage) {
    if (storage.capacity_gib > 0 || !storage.deployment.empty() || storage.throughput > 0 || storage.keep)
      fail("id", fmt::format("{} exists, and the section describes a new one, too", storage.id),
           "remove capacity_gib, deployment, throughput and keep, or the id");
  }

  // Keys that the kind of file system does not have.
  void kind_of_keys(const Storage& storage) {
    if (!storage.volume.empty() && storage.kind != StorageKind::kEbs)
      fail("volume", "volume is a kind of EBS disk", "remove it, or write kind = \"ebs\"");
    if (storage.kind == StorageKind::kEbs && !storage.deployment.empty())
      fail("deployment", "deployment is Lustre's", "remove it");
  }

  // One disk, which the head node exports by NFS.
  void new_ebs(const Storage& storage) {
    if (storage.capacity_gib == 0)
      fail("capacity_gib", "a new disk needs its size", "write capacity_gib = 500, or id = \"vol-…\"");
    if (storage.capacity_gib > 16384)
      fail("capacity_gib", fmt::format("a disk does not come with {} GiB", storage.capacity_gib),
           "write at most 16384, or use kind = \"efs\"");
    const std::string volume = storage.volume.empty() ? "gp3" : storage.volume;
    // ParallelCluster gives a gp3 disk 3,000 I/Os a second: at most 500 for each GiB, at least 4 for each MiB/s.
    const int64_t least = volume == "st1" || volume == "sc1" ? 500
                          : volume == "gp3"                  ? 6
                          : volume == "gp2"                  ? 1
                                                             : 4;
    if (storage.capacity_gib > 0 && storage.capacity_gib < least)
      fail("capacity_gib", fmt::format("{} does not come with {} GiB", volume, storage.capacity_gib),
           fmt::format("write at least {}", least));
    if (storage.throughput > 0 && volume != "gp3")
      fail("throughput", "a disk's throughput is gp3's", "write volume = \"gp3\", or remove it");
    if (storage.throughput > 0 && (storage.throughput < 125 || storage.throughput > 750))
      fail("throughput", fmt::format("gp3 does not come with {} MiB/s", storage.throughput),
           "write 125 to 750");
  }

  void new_lustre(const Storage& storage) {
    const int64_t capacity = storage.capacity_gib;
    if (capacity == 0)
      fail("capacity_gib", "a new file system needs its size",
           "write capacity_gib = 1200 or more, or id = \"fs-…\"");
    if (storage.deployment == "SCRATCH_1") {
      if (capacity != 1200 && capacity != 2400 && capacity % 3600 != 0)
        fail("capacity_gib", fmt::format("SCRATCH_1 does not come with {} GiB", capacity),
             "write 1200, 2400, or a multiple of 3600");
    } else if (capacity != 1200 && capacity % 2400 != 0) {
      fail("capacity_gib", fmt::format("Lustre does not come with {} GiB", capacity),
           fmt::format("write 1200, or a multiple of 2400 such as {}", (capacity / 2400 + 1) * 2400));
    }
    lustre_throughput(storage);
    for (const Queue& queue : config_.queues) {
      if (queue.subnets.size() > 1)
        fail("kind",
             fmt::format("a new Lustre lies in one availability zone, and queue \"{}\" has several subnets",
                         queue.name),
             "make it beforehand and write its id, or keep one subnet");
    }
  }

  void lustre_throughput(const Storage& storage) {
    const bool first = storage.deployment == "PERSISTENT_1", second = storage.deployment == "PERSISTENT_2";
    const std::set<int64_t> steps =
        first ? std::set<int64_t>{50, 100, 200} : std::set<int64_t>{125, 250, 500, 1000};
    const char* mend =
        first ? "write 50, 100 or 200 MB/s for each TiB" : "write 125, 250, 500 or 1000 MB/s for each TiB";
    if (!first && !second && storage.throughput > 0) {
      fail("throughput", "only a persistent Lustre has a throughput to choose",
           "remove it, or write deployment = \"PERSISTENT_2\"");
    } else if ((first || second) && storage.throughput == 0) {
      fail("deployment", fmt::format("{} needs its throughput", storage.deployment), mend);
    } else if ((first || second) && !steps.contains(storage.throughput)) {
      fail("throughput",
           fmt::format("{} does not come with {} MB/s for each TiB", storage.deployment, storage.throughput),
           mend);
    }
  }

  void new_efs(const Storage& storage) {
    if (storage.capacity_gib > 0)
      fail("capacity_gib", "an EFS grows by itself and has no size", "remove capacity_gib");
    if (!storage.deployment.empty())
      fail("deployment", "only Lustre has a deployment", "remove it, or write kind = \"fsx_lustre\"");
    if (storage.throughput > 1024)
      fail("throughput",
           fmt::format("an EFS is provisioned with at most 1024 MiB/s, not {}", storage.throughput),
           "write 1 to 1024, or remove it: throughput then grows with the data");
  }

  const ClusterConfig& config_;
  SpecReading& reading_;
  std::string label_;
};

}  // namespace

void check_storage(const ClusterConfig& config, SpecReading& reading) {
  StorageRules(config, reading).check();
}

}  // namespace shardrun::launcher
