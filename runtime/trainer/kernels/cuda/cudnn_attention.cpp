#include "runtime/trainer/kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>

#include <cmath>
#include <exception>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cudnn_frontend.h>

// The headers ask for this where cuDNN is not linked: it is the library that they take its functions from.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace shardrun::kernels::cuda {
namespace {

using base::Code;
using base::Error;
using base::Result;
using cudnn_frontend::DataType_t;
using cudnn_frontend::graph::Graph;
using cudnn_frontend::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Pass = CudnnAttention::Pass;
using Key = std::tuple<Pass, int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

Key key_of(Pass pass, const AttentionShape& s, bool causal) {
  return {pass, s.B, s.T, s.H, s.K, s.D, causal};
}

// The numbers of a graph's tensors, by which execution finds their memory.
enum Name : int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

Result<void> checked(cudnn_frontend::error_t status) {
  if (status.is_good()) return {};
  return Error(Code::kUnsupported, "cuDNN: " + status.get_message());
}

// The headers throw where a library or a function of it is missing; what they throw ends here.
template <typename Call>
auto fenced(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& thrown) {
    return Error(Code::kUnsupported, std::string("cudnn-frontend: ") + thrown.what());
  }
}

// The headers open CUDA's runtime themselves, in a run as well: it is better found missing here than in the first step.
Result<void> find_runtime() {
  return fenced([]() -> Result<void> {
    int device = 0;
    if (const cudaError_t error = cudnn_frontend::detail::cuda_get_device(&device); error != cudaSuccess)
      return Error(Code::kIo, "cudaGetDevice: error " + std::to_string(error));
    return {};
  });
}

// Opens the library once in a process; it stays.
Result<void> open_library() {
  static void* const library = ::dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(
        Code::kNotFound,
        "no libcudnn.so.9; install cuDNN 9 and name its folder in LD_LIBRARY_PATH, or go on with the "
        "kernels of shardrun");
  }
  cudnn_frontend::cudnn_dlhandle = library;
  // 9.10 has faults in attention, and up to 9.15.0 its backward of lengths that 128 does not divide cannot be captured
  // (NVIDIA/TransformerEngine, fused_attn.cpp).
  constexpr size_t kOldest = 91501;
  if (const size_t version = cudnn_frontend::detail::get_backend_version(); version < kOldest)
    return Error(Code::kUnsupported,
                 "cuDNN " + std::to_string(version) + "; 9.15.1 is the oldest that is used");
  return {};
}

// Describes (B, heads, T, D) inside rows of `stride` elements for each token.
Tensor heads_of(Graph& graph, Name name, const AttentionShape& s, int64_t heads, int64_t stride) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(name)
                          .set_dim({s.B, heads, s.T, s.D})
                          .set_stride({s.T * stride, s.D, stride, 1}));
}
void give_out(const Tensor& tensor, Name name, const AttentionShape& s, int64_t heads, int64_t stride) {
  tensor->set_output(true)
      .set_uid(name)
      .set_dim({s.B, heads, s.T, s.D})
      .set_stride({s.T * stride, s.D, stride, 1});
}
float scale_of(const AttentionShape& s) {
  return 1.0F / std::sqrt(static_cast<float>(s.D));
}

void describe_forward(Graph& graph, const AttentionShape& s, bool causal) {
  const int64_t stride = s.qkv_stride();
  auto options = cudnn_frontend::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_causal_mask(causal)
                     .set_attn_scale(scale_of(s));
  auto [out, stats] = graph.sdpa(heads_of(graph, kQ, s, s.H, stride), heads_of(graph, kK, s, s.K, stride),
                                 heads_of(graph, kV, s, s.K, stride), options);
  give_out(out, kOut, s, s.H, s.H * s.D);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({s.B, s.H, s.T, 1})
      .set_stride({s.H * s.T, s.T, 1, 1});
}

void describe_backward(Graph& graph, const AttentionShape& s, bool causal) {
  const int64_t stride = s.qkv_stride(), out_stride = s.H * s.D;
  auto options = cudnn_frontend::graph::SDPA_backward_attributes()
                     .set_name("attention_gradient")
                     .set_causal_mask(causal)
                     .set_attn_scale(scale_of(s))
                     .set_deterministic_algorithm(true);
  const Tensor stats = graph.tensor(Tensor_attributes()
                                        .set_uid(kStats)
                                        .set_data_type(DataType_t::FLOAT)
                                        .set_dim({s.B, s.H, s.T, 1})
                                        .set_stride({s.H * s.T, s.T, 1, 1}));
  auto [dq, dk, dv] =
      graph.sdpa_backward(heads_of(graph, kQ, s, s.H, stride), heads_of(graph, kK, s, s.K, stride),
                          heads_of(graph, kV, s, s.K, stride), heads_of(graph, kOut, s, s.H, out_stride),
                          heads_of(graph, kDout, s, s.H, out_stride), stats, options);
  give_out(dq, kDq, s, s.H, stride);
  give_out(dk, kDk, s, s.K, stride);
  give_out(dv, kDv, s, s.K, stride);
}

Bf16* changeable(const Bf16* pointer) {
  return const_cast<Bf16*>(pointer);  // cuDNN takes inputs in the same way as outputs
}

}  // namespace

struct CudnnAttention::State {
  cudnnHandle_t handle = nullptr;
  std::shared_ptr<cudnn_frontend::DeviceProperties> absent_device;
  int capability = 0;
  struct Plan {
    std::unique_ptr<Graph> graph;
    size_t workspace_bytes = 0;
  };
  std::map<Key, Plan> plans;

  ~State() {
    plans.clear();
    if (handle != nullptr) (void)cudnn_frontend::detail::destroy_handle(handle);
  }

  // Makes a graph up to the point where cuDNN says that it supports it; nothing is compiled.
  Result<std::unique_ptr<Graph>> supported(Pass pass, const AttentionShape& s, bool causal) {
    auto graph = std::make_unique<Graph>();
    graph->set_io_data_type(DataType_t::BFLOAT16)
        .set_intermediate_data_type(DataType_t::FLOAT)
        .set_compute_data_type(DataType_t::FLOAT);
    if (absent_device) graph->set_device_properties(absent_device);
    if (capability > 0) graph->set_sm_version(capability);
    pass == Pass::kForward ? describe_forward(*graph, s, causal) : describe_backward(*graph, s, causal);
    RETURN_IF_ERROR(checked(graph->validate()));
    RETURN_IF_ERROR(checked(graph->build_operation_graph(handle)));
    RETURN_IF_ERROR(checked(graph->create_execution_plans({cudnn_frontend::HeurMode_t::A})));
    RETURN_IF_ERROR(checked(graph->check_support()));
    return graph;
  }

  Result<size_t> make_plan(Pass pass, const AttentionShape& s, bool causal) {
    ASSIGN_OR_RETURN(auto graph, supported(pass, s, causal));
    RETURN_IF_ERROR(checked((graph)->build_plans(cudnn_frontend::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    int64_t bytes = 0;
    RETURN_IF_ERROR(checked((graph)->get_workspace_size(bytes)));
    plans[key_of(pass, s, causal)] = {std::move(graph), static_cast<size_t>(bytes)};
    return static_cast<size_t>(bytes);
  }

  const Plan* plan(Pass pass, const AttentionShape& s, bool causal) const {
    const auto known = plans.find(key_of(pass, s, causal));
    return known == plans.end() ? nullptr : &known->second;
  }

  Result<void> run(Pass pass, const AttentionShape& s, bool causal, CUstream_st* stream, void* workspace,
                   std::unordered_map<int64_t, void*> memory) {
    const Plan* const prepared = plan(pass, s, causal);
    SHARDRUN_CHECK(prepared != nullptr);
    return fenced([&]() -> Result<void> {
      if (cudnn_frontend::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS)
        return Error(Code::kIo, "cudnnSetStream");
      return checked(prepared->graph->execute(handle, memory, workspace));
    });
  }
};

CudnnAttention::CudnnAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudnnAttention::~CudnnAttention() = default;

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create(int capability) {
  RETURN_IF_ERROR(fenced(open_library));
  if (auto found = find_runtime(); !found)
    return std::move(found).error().context(
        "cuDNN wants libcudart.so of CUDA 12 or 13, too; name its folder in LD_LIBRARY_PATH");
  auto state = std::make_unique<State>();
  state->capability = capability;
  const auto made = fenced(
      [&]() -> Result<cudnnStatus_t> { return cudnn_frontend::detail::create_handle(&state->handle); });
  if (!made) return made.error();
  if (*made != CUDNN_STATUS_SUCCESS)
    return Error(Code::kIo, "cudnnCreate failed; the driver may be too old for this cuDNN");
  return std::unique_ptr<CudnnAttention>(new CudnnAttention(std::move(state)));
}

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create_for(std::string_view properties,
                                                                   int capability) {
  RETURN_IF_ERROR(fenced(open_library));
  auto state = std::make_unique<State>();
  state->absent_device = std::make_shared<cudnn_frontend::DeviceProperties>();
  state->capability = capability;
  RETURN_IF_ERROR(fenced([&] {
    return checked(state->absent_device->deserialize({properties.begin(), properties.end()}));
  }));
  return std::unique_ptr<CudnnAttention>(new CudnnAttention(std::move(state)));
}

bool CudnnAttention::takes(const AttentionShape& shape, const Visibility& visibility) {
  return visibility.begins == nullptr && visibility.lengths == nullptr && shape.D % 8 == 0 && shape.D <= 128;
}

Result<void> CudnnAttention::check(Pass pass, const AttentionShape& shape, bool causal) {
  auto graph = fenced([&] { return state_->supported(pass, shape, causal); });
  RETURN_IF_ERROR(graph);
  return {};
}

Result<size_t> CudnnAttention::prepare(Pass pass, const AttentionShape& shape, bool causal) {
  return fenced([&] { return state_->make_plan(pass, shape, causal); });
}

std::optional<size_t> CudnnAttention::prepared(Pass pass, const AttentionShape& shape, bool causal) const {
  const auto* const plan = state_->plan(pass, shape, causal);
  if (plan == nullptr) return std::nullopt;
  return plan->workspace_bytes;
}

int64_t CudnnAttention::version() const {
  return static_cast<int64_t>(cudnn_frontend::detail::get_backend_version());
}

Result<void> CudnnAttention::forward(CUstream_st* stream, void* workspace, Bf16* out, float* lse,
                                     const Bf16* qkv, const AttentionShape& shape, bool causal) {
  Bf16* const q = changeable(qkv);
  return state_->run(Pass::kForward, shape, causal, stream, workspace,
                     {{kQ, q},
                      {kK, q + shape.H * shape.D},
                      {kV, q + (shape.H + shape.K) * shape.D},
                      {kOut, out},
                      {kStats, lse}});
}

Result<void> CudnnAttention::backward(CUstream_st* stream, void* workspace, Bf16* dqkv, const Bf16* dout,
                                      const Bf16* out, const Bf16* qkv, const float* lse,
                                      const AttentionShape& shape, bool causal) {
  Bf16* const q = changeable(qkv);
  const int64_t k = shape.H * shape.D, v = (shape.H + shape.K) * shape.D;
  return state_->run(Pass::kBackward, shape, causal, stream, workspace,
                     {{kQ, q},
                      {kK, q + k},
                      {kV, q + v},
                      {kOut, changeable(out)},
                      {kDout, changeable(dout)},
                      {kStats, const_cast<float*>(lse)},
                      {kDq, dqkv},
                      {kDk, dqkv + k},
                      {kDv, dqkv + v}});
}

}  // namespace shardrun::kernels::cuda
