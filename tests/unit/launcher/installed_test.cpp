#include "launcher/submit/installed.h"

#include <doctest/doctest.h>

using namespace shardrun::launcher;

TEST_CASE("doctor: the plugin's version is read from its bytes") {
  CHECK(plugin_version_in(std::string("\0x\0NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\0y", 50)) ==
        "1.13.2-aws");
  CHECK(plugin_version_in("Initializing aws-ofi-nccl ") == "");
  CHECK(plugin_version_in("no plugin at all") == "");
}

TEST_CASE("doctor: PMIx plugins are found in what several versions of srun print") {
  CHECK(
      pmix_plugins_in("MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin "
                      "versions available: pmix_v4\n") == "pmix pmix_v4");
  CHECK(pmix_plugins_in("srun: MPI types are...\nsrun: none\nsrun: pmi2\n") == "");
}

TEST_CASE("doctor: every component is named, found here or not") {
  for (const Component& component : find_components()) {
    CAPTURE(component.name);
    CHECK_FALSE(component.name.empty());
    CHECK((component.version.empty() ? !component.note.empty() : true));
  }
}
