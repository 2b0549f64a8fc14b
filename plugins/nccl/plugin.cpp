// The C face of the nccl plugin: what plugins/common/c_face.h makes of its engine, plus channels on a device's
// stream.
#include <utility>

#include "plugins/common/c_face.h"
#include "plugins/nccl/engine.h"

namespace shardrun::nccl {
namespace {

using Face = common::CFace<Engine, Channel>;

int32_t channel_open_on_stream(shardrun_comm_context* context, uint32_t channel_id,
                               const uint32_t* global_ranks, uint32_t rank_count, void* device_stream,
                               shardrun_comm_channel** channel) {
  return Face::open_channel(context, global_ranks, rank_count, channel,
                            [&](Engine& engine, std::vector<uint32_t> ranks, Channel** opened) {
                              const Engine::DeviceStream stream{static_cast<CuStream*>(device_stream)};
                              return engine.open_channel(channel_id, std::move(ranks), opened, &stream);
                            });
}

constexpr shardrun_comm_v1_table make_table() {
  shardrun_comm_v1_table table =
      Face::table("nccl", "shardrun " SHARDRUN_VERSION ", NCCL of the machine", SHARDRUN_COMM_DEVICE_BUFFERS);
  table.channel_open_on_stream = channel_open_on_stream;
  return table;
}

}  // namespace
}  // namespace shardrun::nccl

extern "C" __attribute__((visibility("default"))) const shardrun_comm_v1_table shardrun_comm_v1;
extern "C" constexpr shardrun_comm_v1_table shardrun_comm_v1 = shardrun::nccl::make_table();
