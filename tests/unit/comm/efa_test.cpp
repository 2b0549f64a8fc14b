#include "plugins/nccl/efa.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/folder.h"

using shardrun::nccl::complaint_about;
using shardrun::nccl::has_efa;
using shardrun::nccl::network_name;
using shardrun::nccl::ofi_version_in;

namespace {

void add_device(const std::string& root, const std::string& name, const std::string& vendor) {
  const std::string folder = root + "/sys/class/infiniband/" + name + "/device";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/vendor") << vendor << "\n";
}

}  // namespace

TEST_CASE("efa: a device of Amazon's is EFA, a card of InfiniBand is not") {
  const shardrun::tests::Folder folder;
  CHECK_FALSE(has_efa(folder.path()));
  add_device(folder.path(), "mlx5_0", "0x15b3");
  CHECK_FALSE(has_efa(folder.path()));
  add_device(folder.path(), "rdmap16s27", "0x1d0f");
  CHECK(has_efa(folder.path()));
}

TEST_CASE("efa: without aws-ofi-nccl 1.7 or later NCCL is refused, with what was found") {
  CHECK(complaint_about({"/opt/amazon/ofi-nccl/lib/libnccl-net.so", "1.13.2-aws"}, "") == "");
  CHECK(complaint_about({"/x/libnccl-net.so", "1.7.0"}, "") == "");
  CHECK(complaint_about({"/x/libnccl-net.so", "2.0.1"}, "") == "");
  CHECK(complaint_about({"/x/libnccl-net.so", "1.6.0"}, "")
            .find("aws-ofi-nccl 1.6.0 (/x/libnccl-net.so) is too old") == 0);
  CHECK(complaint_about({"", ""}, "").find("and the loader finds no libnccl-net.so") != std::string::npos);
  CHECK(complaint_about({"", ""}, "ofi").find("and the loader finds no libnccl-net-ofi.so") !=
        std::string::npos);
  CHECK(complaint_about({"/x/libnccl-net.so", ""}, "").find("/x/libnccl-net.so is something else") !=
        std::string::npos);
}

TEST_CASE("efa: the plugin's version is read from its bytes, and its network has the name of its time") {
  CHECK(ofi_version_in(std::string("\0x\0NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\0y", 50)) ==
        "1.13.2-aws");
  CHECK(ofi_version_in("NET/IB") == "");
  CHECK(network_name("1.11.0") == "AWS Libfabric");
  CHECK(network_name("1.7.1-aws") == "AWS Libfabric");
  CHECK(network_name("1.12.0") == "Libfabric");
  CHECK(network_name("1.21.1") == "Libfabric");
}
