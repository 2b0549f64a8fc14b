#include "runtime/trainer/kernels/cuda/device.h"

#include <algorithm>
#include <utility>

#include "runtime/trainer/kernels/cuda/launch.cuh"

namespace shardrun::kernels::cuda {
namespace {

using base::Code;
using base::Error;
using base::Result;

Error cuda_error(const std::string& what, cudaError_t error) {
  return {Code::kIo, what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)};
}

#define RETURN_IF_CUDA(what, call)                                                  \
  do {                                                                              \
    if (const cudaError_t status_of_call = (call); status_of_call != cudaSuccess) { \
      (void)cudaGetLastError(); /* or the next launch would be blamed for it */     \
      return cuda_error(what, status_of_call);                                      \
    }                                                                               \
  } while (false)

}  // namespace

void Device::State::fail(const char* op, cudaError_t error) {
  if (failure) return;
  std::string what(op);
  // An error of the launch itself is this op's; anything else may be of an earlier op that has only now run.
  if (error != cudaErrorInvalidConfiguration && error != cudaErrorInvalidValue) {
    what += " (or an op before it: " + recent_ops() + ")";
  }
  failure = cuda_error(what, error);
}

void Device::State::fail(const char* op, Code code, std::string why) {
  if (!failure) failure = Error(code, std::string(op) + ": " + why);
}

std::string Device::State::recent_ops() const {
  std::string names;
  const size_t known = ops_since_wait < recent.size() ? ops_since_wait : recent.size();
  for (size_t i = 0; i < known; ++i) {
    names += i == 0 ? "" : ", ";
    names += recent[(ops_since_wait - 1 - i) % recent.size()];
  }
  if (known < ops_since_wait) names += ", and " + std::to_string(ops_since_wait - known) + " more";
  return known == 0 ? "none since the last wait" : "latest first: " + names;
}

OpScope::OpScope(Device& device, const char* name) : state_(device.state()), name_(name) {
  if (!runs()) return;
  state_.recent[state_.ops_since_wait++ % state_.recent.size()] = name;
  check(cudaSetDevice(state_.index));
}

OpScope::~OpScope() {
  if (!runs()) return;
  if (!check(cudaGetLastError()) || !state_.wait_after_each_op) return;
  if (const cudaError_t error = cudaStreamSynchronize(state_.stream); error != cudaSuccess) {
    state_.failure = cuda_error(name_, error);
  } else {
    state_.ops_since_wait = 0;
  }
}

bool OpScope::check(cudaError_t error) {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  state_.fail(name_, error);
  return false;
}

// Both calls are ordered by the stream, so ops that still use the smaller workspace are done before it is freed.
std::byte* OpScope::scratch(size_t bytes) {
  if (!runs()) return nullptr;
  if (bytes > state_.workspace_bytes) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!check(cudaStreamIsCapturing(state_.stream, &capture))) return nullptr;
    if (capture != cudaStreamCaptureStatusNone) {
      fail(Code::kRefused, "needs a workspace of " + std::to_string(bytes) +
                               " bytes while a graph is captured, has " +
                               std::to_string(state_.workspace_bytes) + "; run the op once before");
      return nullptr;
    }
    state_.graphs.clear(state_.stream);  // they know the smaller one
    void* larger = nullptr;
    if (!check(cudaFreeAsync(std::exchange(state_.workspace, nullptr), state_.stream))) return nullptr;
    state_.workspace_bytes = 0;
    if (!check(cudaMallocAsync(&larger, bytes, state_.stream))) return nullptr;
    state_.workspace = larger;
    state_.workspace_bytes = bytes;
  }
  return static_cast<std::byte*>(state_.workspace);
}

Result<int> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    // A driver that is older than this CUDA also says "insufficient", but it has a version.
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver != 0 && error == cudaErrorInsufficientDriver) {
      return Error(Code::kUnsupported, "the NVIDIA driver knows CUDA " + std::to_string(driver / 1000) + "." +
                                           std::to_string(driver % 1000 / 10) + " at most, which is too old");
    }
    return 0;
  }
  RETURN_IF_CUDA("cudaGetDeviceCount", error);
  return count;
}

std::string why_no_device() {
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) return "no NVIDIA driver (libcuda.so.1) was found";
  (void)cudaDriverGetVersion(&driver);
  return "the NVIDIA driver, of CUDA " + std::to_string(driver / 1000) + "." +
         std::to_string(driver % 1000 / 10) + ", shows no GPU, or CUDA_VISIBLE_DEVICES hides them";
}

void FreesMemory::operator()(std::byte* memory) const {
  (void)cudaFree(memory);
}

Device::Device(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Device>> Device::create(const Options& options) {
  const Result<int> count = device_count();
  if (!count) return count.error();
  if (options.index < 0 || options.index >= *count) {
    return Error(Code::kNotFound, "GPU " + std::to_string(options.index) + " of " + std::to_string(*count));
  }
  RETURN_IF_CUDA("cudaSetDevice", cudaSetDevice(options.index));
  cudaDeviceProp properties{};
  RETURN_IF_CUDA("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, options.index));
  if (properties.major < 8) {
    return Error(Code::kUnsupported, std::string(properties.name) + " has compute capability " +
                                         std::to_string(properties.major) + "." +
                                         std::to_string(properties.minor) +
                                         "; 8.0 is the oldest that shardrun's kernels run on");
  }
  std::unique_ptr<Device> device(new Device(std::make_unique<State>()));
  State& state = device->state();
  state.index = options.index;
  state.multiprocessors = properties.multiProcessorCount;
  state.capability = 10 * properties.major + properties.minor;
  state.name = properties.name;
  state.wait_after_each_op = options.wait_after_each_op;
  state.table = ProductTable(std::to_string(cublasLtGetVersion()) + " on " + state.name);
  RETURN_IF_CUDA("cudaStreamCreate", cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
  for (cudaEvent_t& mark : state.marks) RETURN_IF_CUDA("cudaEventCreate", cudaEventCreate(&mark));
  if (const cublasStatus_t status = cublasLtCreate(&state.products); status != CUBLAS_STATUS_SUCCESS) {
    return Error(Code::kIo, std::string("cublasLtCreate: ") + cublasLtGetStatusString(status));
  }
  RETURN_IF_CUDA("the workspace", cudaMallocAsync(&state.workspace, options.workspace_bytes, state.stream));
  state.workspace_bytes = options.workspace_bytes;
  RETURN_IF_ERROR(device->synchronize());
  return Result<std::unique_ptr<Device>>(std::move(device));
}

Device::~Device() {
  State& s = *state_;
  (void)cudaSetDevice(s.index);
  if (s.stream != nullptr) {
    (void)cudaStreamSynchronize(s.stream);
    if (s.workspace != nullptr) (void)cudaFreeAsync(s.workspace, s.stream);
  }
  s.graphs.clear(s.stream);
  s.plans.reset();
  s.cudnn.reset();
  if (s.products != nullptr) (void)cublasLtDestroy(s.products);
  for (cudaEvent_t mark : s.marks) {
    if (mark != nullptr) (void)cudaEventDestroy(mark);
  }
  for (cudaEvent_t stamp : s.stamps) (void)cudaEventDestroy(stamp);
  if (s.stream != nullptr) (void)cudaStreamDestroy(s.stream);
}

int Device::index() const {
  return state_->index;
}
CUstream_st* Device::stream() const {
  return state_->stream;
}
const std::string& Device::name() const {
  return state_->name;
}
int Device::multiprocessors() const {
  return state_->multiprocessors;
}
int Device::capability() const {
  return state_->capability;
}

Result<void> Device::status() const {
  if (state_->failure) return *state_->failure;
  return {};
}

Result<void> Device::synchronize() {
  RETURN_IF_ERROR(status());
  const cudaError_t error = cudaStreamSynchronize(state_->stream);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    state_->failure = cuda_error("one of the ops (" + state_->recent_ops() + ")", error);
    return *state_->failure;
  }
  state_->ops_since_wait = 0;
  return {};
}

Result<Memory> Device::allocate(size_t bytes) {
  void* memory = nullptr;
  RETURN_IF_CUDA("cudaSetDevice", cudaSetDevice(state_->index));
  RETURN_IF_CUDA(std::to_string(bytes) + " bytes of the GPU's memory",
                 cudaMalloc(&memory, bytes == 0 ? 1 : bytes));
  return Memory(static_cast<std::byte*>(memory));
}

Result<void> Device::copy_in(void* device_memory, const void* host_memory, size_t bytes) {
  RETURN_IF_ERROR(synchronize());
  RETURN_IF_CUDA("copying to the GPU", cudaMemcpy(device_memory, host_memory, bytes, cudaMemcpyHostToDevice));
  // From pageable memory cudaMemcpy may return before the last part has arrived.
  RETURN_IF_CUDA("copying to the GPU", cudaDeviceSynchronize());
  return {};
}

Result<void> Device::copy_out(void* host_memory, const void* device_memory, size_t bytes) {
  RETURN_IF_ERROR(synchronize());
  RETURN_IF_CUDA("copying from the GPU",
                 cudaMemcpy(host_memory, device_memory, bytes, cudaMemcpyDeviceToHost));
  return {};
}

void Device::fill(void* device_memory, int byte, size_t bytes) {
  OpScope op(*this, "fill");
  if (op.runs() && bytes > 0) op.check(cudaMemsetAsync(device_memory, byte, bytes, op.stream()));
}

void Device::copy(void* to, const void* from, size_t bytes) {
  OpScope op(*this, "copy");
  if (op.runs() && bytes > 0)
    op.check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, op.stream()));
}

Result<void> Device::mark(int which) {
  RETURN_IF_CUDA("cudaEventRecord", cudaEventRecord(state_->marks[which], state_->stream));
  return {};
}

Result<float> Device::milliseconds_between_marks() {
  RETURN_IF_ERROR(synchronize());
  float milliseconds = 0.0F;
  RETURN_IF_CUDA("cudaEventElapsedTime",
                 cudaEventElapsedTime(&milliseconds, state_->marks[0], state_->marks[1]));
  return milliseconds;
}

Result<int64_t> Device::use_cudnn_attention(const AttentionShape& shape, bool causal, int64_t most_bytes) {
  RETURN_IF_CUDA("cudaSetDevice", cudaSetDevice(state_->index));
  ASSIGN_OR_RETURN(auto cudnn, CudnnAttention::create(state_->capability));
  if (!CudnnAttention::takes(shape, {}))
    return Error(Code::kUnsupported, "no attention by cuDNN for heads of " + std::to_string(shape.D));
  size_t most = 0;
  for (const auto pass : {CudnnAttention::Pass::kForward, CudnnAttention::Pass::kBackward}) {
    ASSIGN_OR_RETURN(const auto bytes, (cudnn)->prepare(pass, shape, causal));
    most = std::max(most, bytes);
  }
  if (static_cast<int64_t>(most) > most_bytes) {
    return Error(Code::kUnsupported, "cuDNN wants a workspace of " + std::to_string(most) + " bytes, " +
                                         std::to_string(most_bytes) + " are planned for it");
  }
  state_->graphs.clear(state_->stream);
  if (most > state_->workspace_bytes) {
    void* larger = nullptr;
    if (const cudaError_t error = cudaMallocAsync(&larger, most, state_->stream); error != cudaSuccess) {
      (void)cudaGetLastError();
      return Error(Code::kUnsupported, "no room for the workspace of " + std::to_string(most) +
                                           " bytes that cuDNN wants: " + cudaGetErrorString(error));
    }
    RETURN_IF_CUDA("the workspace", cudaFreeAsync(std::exchange(state_->workspace, larger), state_->stream));
    state_->workspace_bytes = most;
  }
  state_->cudnn = std::move(cudnn);
  return static_cast<int64_t>(most);
}

// Waits first: nothing of cuDNN's may still run when its plans go.
void Device::use_own_attention() {
  if (state_->cudnn != nullptr) (void)synchronize();
  state_->graphs.clear(state_->stream);
  state_->cudnn.reset();
}

int64_t Device::cudnn_version() const {
  return state_->cudnn == nullptr ? 0 : state_->cudnn->version();
}

void Device::tune_products(bool on) {
  state_->tuning = on;
}

std::string Device::product_table() const {
  return state_->table.text();
}

const std::vector<std::string>& Device::plain_products() const {
  return state_->plain_products;
}

Result<void> Device::load_product_table(std::string_view text) {
  state_->graphs.clear(state_->stream);
  state_->plans.reset();  // they were made without it
  state_->plain_products.clear();
  return state_->table.load(text);
}

}  // namespace shardrun::kernels::cuda
