// What stands for cuDNN's attention in builds without cudnn-frontend's headers.
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cuda/cudnn_attention.h"

namespace shardrun::kernels::cuda {
namespace {

base::Error absent() {
  return {
      base::Code::kUnsupported,
      "built without cuDNN: no cudnn_frontend.h was found; set CUDNN_FRONTEND_INCLUDE_DIR and build again"};
}

}  // namespace

struct CudnnAttention::State {};

base::Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create(int) {
  return absent();
}
base::Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create_for(std::string_view, int) {
  return absent();
}
CudnnAttention::CudnnAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::takes(const AttentionShape&, const Visibility&) {
  return false;
}
base::Result<void> CudnnAttention::check(Pass, const AttentionShape&, bool) {
  return absent();
}
base::Result<size_t> CudnnAttention::prepare(Pass, const AttentionShape&, bool) {
  return absent();
}
std::optional<size_t> CudnnAttention::prepared(Pass, const AttentionShape&, bool) const {
  return std::nullopt;
}
int64_t CudnnAttention::version() const {
  return 0;
}
base::Result<void> CudnnAttention::forward(CUstream_st*, void*, Bf16*, float*, const Bf16*,
                                           const AttentionShape&, bool) {
  return absent();
}
base::Result<void> CudnnAttention::backward(CUstream_st*, void*, Bf16*, const Bf16*, const Bf16*, const Bf16*,
                                            const float*, const AttentionShape&, bool) {
  return absent();
}

}  // namespace shardrun::kernels::cuda
