// The C face of the ofi plugin: what plugins/common/c_face.h makes of its engine.
#include <rdma/fabric.h>

#include "plugins/common/c_face.h"
#include "plugins/ofi/engine.h"

#define SHARDRUN_TEXT_OF(x) #x
#define SHARDRUN_NUMBER_TEXT(x) SHARDRUN_TEXT_OF(x)

namespace {

using Face = shardrun::common::CFace<shardrun::ofi::Engine, shardrun::ofi::Channel>;

constexpr shardrun_comm_v1_table make_table() {
  shardrun_comm_v1_table table =
      Face::table("ofi",
                  "shardrun " SHARDRUN_VERSION ", libfabric " SHARDRUN_NUMBER_TEXT(
                      FI_MAJOR_VERSION) "." SHARDRUN_NUMBER_TEXT(FI_MINOR_VERSION) SHARDRUN_LIBFABRIC_KIND,
                  SHARDRUN_COMM_SUMS_IN_RANK_ORDER | SHARDRUN_COMM_TELLS_PEERS);
  table.all_to_all = Face::all_to_all;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const shardrun_comm_v1_table shardrun_comm_v1;
extern "C" constexpr shardrun_comm_v1_table shardrun_comm_v1 = make_table();
