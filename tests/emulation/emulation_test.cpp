// Tests that the emulated GPU finds faults: kernels and orders of calls with one fault each, and the same without it.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/memory.h"
#include "tests/emulation/settings.h"

using namespace shardrun::emulation;

namespace {

const bool names_device = cudaSetDevice(0) == cudaSuccess;  // applies to all cases, on their thread
constexpr int kThreads = 128;
using Values = std::vector<float>;

Values counted(int count) {
  Values values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}
Values reversed(Values values) {
  return {values.rbegin(), values.rend()};
}

// GPU memory for as long as a case runs.
class OnGpu {
 public:
  explicit OnGpu(const Values& values) : count_(values.size()) {
    REQUIRE_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), values.size() * sizeof(float)), cudaSuccess);
    REQUIRE_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
               cudaSuccess);
    REQUIRE_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~OnGpu() { (void)cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  float* data() const { return data_; }
  Values read() const {
    Values values(count_);
    (void)cudaDeviceSynchronize();
    (void)cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  float* data_ = nullptr;
  size_t count_;
};

template <typename... Parameters>
cudaError_t start(void (*kernel)(Parameters...), int threads, size_t shared,
                  std::type_identity_t<Parameters>... arguments) {
  const cudaLaunchConfig_t config{1, static_cast<unsigned>(threads), shared, nullptr};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Returns the out of kernel(out, in) for numbers 1, 2, 3 …, in the seed's order.
Values result_of(void (*kernel)(float*, const float*), uint64_t seed, size_t shared = 0) {
  set_seed(seed);
  const OnGpu in(counted(kThreads)), out(Values(kThreads, 0.0F));
  CHECK_EQ(start(kernel, kThreads, shared, out.data(), in.data()), cudaSuccess);
  return out.read();
}

// Returns whether one of the first seeds shows that results are not what they should be.
bool is_found_wrong(void (*kernel)(float*, const float*), const Values& right, size_t shared = 0) {
  bool is_found = false;
  for (uint64_t seed = 0; seed < 4; ++seed) is_found = is_found || result_of(kernel, seed, shared) != right;
  return is_found;
}

// Checks what is printed and found, and that the GPU goes on failing.
void check_finding(void (*kernel)(float*, const float*), const char* words) {
  set_seed(0);
  const OnGpu in(counted(kThreads)), out(Values(kThreads, 0.0F));
  CHECK_EQ(start(kernel, kThreads, 0, out.data(), in.data()), cudaSuccess);
  CHECK_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  CHECK_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  const std::string found = forget_findings();
  INFO(found);
  CHECK_NE(found.find(words), std::string::npos);
}

// Returns what a process that `fault` ends by SIGSEGV or SIGILL prints; "" if it does not end so.
template <typename Fault>
std::string last_words(const Fault& fault) {
  int ends[2] = {};
  REQUIRE_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    explain_faults();  // doctest has put its own handler in place
    alarm(20);
    fault();
    _exit(0);
  }
  close(ends[1]);
  std::string words(4096, '\0');
  const ssize_t count = read(ends[0], words.data(), words.size());
  close(ends[0]);
  int status = 0;
  REQUIRE_EQ(waitpid(child, &status, 0), child);
  const bool is_fault = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGILL);
  words.resize(count > 0 && is_fault ? static_cast<size_t>(count) : 0);
  return words;
}
bool says(const std::string& text, const char* words) {
  INFO(text);
  return text.find(words) != std::string::npos;
}

template <bool kWaits>
__global__ void reverse(float* out, const float* in) {
  auto& values = shared_memory<float[kThreads]>();
  values[threadIdx.x] = in[threadIdx.x];
  if (kWaits) __syncthreads();
  out[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// Runs rounds of "everyone writes, everyone reads another's", where the second barrier keeps the next
// write off the reads.
template <bool kWaitsForReaders>
__global__ void rotate_twice(float* out, const float* in) {
  auto& values = shared_memory<float[kThreads]>();
  float mine = in[threadIdx.x];
  for (int round = 0; round < 2; ++round) {
    values[threadIdx.x] = mine;
    __syncthreads();
    mine = values[(threadIdx.x + 64) % kThreads];
    if (kWaitsForReaders) __syncthreads();
  }
  out[threadIdx.x] = mine;
}

template <bool kWaits>
__global__ void copy_late(float* out, const float* in) {
  float* const values = dynamic_shared_memory<float>();
  if (threadIdx.x < kThreads / 4) start_copy(values + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
  commit_copies();
  if (kWaits) wait_for_copies<0>();
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
  wait_for_copies<0>();
}

__global__ void never_waits_for_copies(float* out, const float* in) {
  float* const values = reinterpret_cast<float*>(&shared_memory<uint4[kThreads]>());
  start_copy(values + 4 * threadIdx.x, in, true);
  out[threadIdx.x] = 1.0F;
}

// Multiplies the (16,16) identity by itself; with kShift, lanes take the fragment of the next row.
template <int kShift>
__global__ void square_of_identity(float* out, const float*) {
  auto& tile = shared_memory<uint16_t[16][8 * 2]>();
  const int me = static_cast<int>(threadIdx.x);
  if (me < 32) {
    for (int i = me; i < 256; i += 32) tile[i / 16][i % 16] = i / 16 == i % 16 ? 0x3f80 : 0;  // 1 in bf16
    uint32_t a[4], b[4];
    load_matrices(a, &tile[(me % 16 + kShift) % 16][me / 16 * 8]);
    load_matrices_transposed(b, &tile[me % 16][me / 16 * 8]);
    float sum[4] = {};
    multiply_add(sum, a, b[0], b[1]);
    for (int i = 0; i < 4; ++i) out[4 * me + i] = sum[i];
  }
}

__global__ void some_wait(float* out, const float*) {
  if (threadIdx.x < 64) __syncthreads();
  out[threadIdx.x] = 1.0F;
}
__global__ void one_leaves(float* out, const float*) {
  if (threadIdx.x == 77) return;
  __syncthreads();
  out[threadIdx.x] = 1.0F;
}
__global__ void a_lane_is_missing(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 32 != 5) value += __shfl_xor_sync(0xffffffffU, value, 1);
  out[threadIdx.x] = value;
}
__global__ void lanes_differ(float* out, const float*) {
  float sum[4] = {};
  const uint32_t zeros[4] = {};
  if (threadIdx.x % 2 == 0) {
    multiply_add(sum, zeros, 0, 0);
  } else {
    sum[0] = __shfl_xor_sync(0xffffffffU, 1.0F, 1);
  }
  out[threadIdx.x] = sum[0];
}
__global__ void write_beside_dynamic(float* out, const float*) {
  dynamic_shared_memory<float>()[-1] = 0.0F;
  out[threadIdx.x] = 1.0F;
}
__global__ void too_much_static(float* out, const float*) {
  out[threadIdx.x] = shared_memory<float[13 * 1024]>()[0];
}

__global__ void read_at(float* out, const float* in, int at) {
  out[threadIdx.x] = in[at];
}
template <typename Word>
__global__ void copy_word(float* out, const float* in, int at) {
  *reinterpret_cast<Word*>(out) = *reinterpret_cast<const Word*>(in + at);
}
template <typename Word>
__global__ void copy_word_to(float* out, const float* in, int at) {
  *reinterpret_cast<Word*>(out + at) = *reinterpret_cast<const Word*>(in);
}
__global__ void read_shared_at(float* out, int at) {
  out[threadIdx.x] = dynamic_shared_memory<float>()[at];
}
__global__ void read_static_at(float* out, int at) {
  out[threadIdx.x] = shared_memory<float[32]>()[at];
}

}  // namespace

TEST_CASE("emulation: a barrier that is missing behind writes is found") {
  const Values right = reversed(counted(kThreads));
  CHECK_FALSE(is_found_wrong(reverse<true>, right));
  CHECK(is_found_wrong(reverse<false>, right));
}

TEST_CASE("emulation: a barrier that is missing behind reads is found") {
  CHECK_FALSE(is_found_wrong(rotate_twice<true>, counted(kThreads)));
  CHECK(is_found_wrong(rotate_twice<false>, counted(kThreads)));
}

TEST_CASE("emulation: copies into shared memory that nobody waits for are found") {
  CHECK_FALSE(is_found_wrong(copy_late<true>, counted(kThreads), kThreads * 4));
  CHECK(is_found_wrong(copy_late<false>, counted(kThreads), kThreads * 4));
  check_finding(never_waits_for_copies, "ends while copies into shared memory are under way");
}

TEST_CASE("emulation: a fragment of another row gives another product") {
  Values identity(kThreads, 0.0F);  // columns 0 to 7 of it, as lanes have them
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      identity[static_cast<size_t>(4 * lane + i)] = row == column ? 1.0F : 0.0F;
    }
  }
  CHECK_FALSE(is_found_wrong(square_of_identity<0>, identity));
  CHECK(is_found_wrong(square_of_identity<1>, identity));
}

TEST_CASE("emulation: barriers and steps of a warp that not all threads come to are findings") {
  check_finding(some_wait, "waits at a barrier that 64 threads of its block will not come to");
  check_finding(one_leaves, "waits at a barrier that 1 threads of its block will not come to");
  check_finding(a_lane_is_missing, "waits at a step of its warp for lanes");
  check_finding(lanes_differ, "is at another step than other lanes of its warp");
}

TEST_CASE("emulation: shared memory beside what a block has") {
  set_seed(0);
  const OnGpu out(Values(kThreads, 0.0F));
  // It is rubbish that is no number, behind the 100 bytes but before the next multiple of 128.
  CHECK_EQ(start(read_shared_at, 1, 100, out.data(), 31), cudaSuccess);
  CHECK(std::isnan(out.read()[0]));
  const auto kernel_dies = [&](const auto& launch_it) {
    return says(last_words([&] {
                  launch_it();
                  (void)cudaDeviceSynchronize();
                }),
                "thread (0,0,0) of block (0,0,0) (of (1,1,1) blocks, 1 threads) touched");
  };
  CHECK(kernel_dies([&] { (void)start(read_shared_at, 1, 128, out.data(), 32); }));
  CHECK(kernel_dies([&] { (void)start(read_static_at, 1, 0, out.data(), 32); }));
  check_finding(write_beside_dynamic, "wrote beside its dynamic shared memory");
  check_finding(too_much_static, "bytes of shared memory, more than the 49152");
}

TEST_CASE("emulation: a launch that a GPU refuses is refused at once, and the error is kept once") {
  const OnGpu out(Values(kThreads, 0.0F));
  CHECK_EQ(start(read_shared_at, 1025, 0, out.data(), 0), cudaErrorInvalidConfiguration);
  CHECK_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  CHECK_EQ(cudaGetLastError(), cudaSuccess);
  CHECK_EQ(start(read_shared_at, 1, 50000, out.data(), 0), cudaErrorInvalidValue);
  CHECK_EQ(cudaFuncSetAttribute(read_shared_at, cudaFuncAttributeMaxDynamicSharedMemorySize, 50000),
           cudaSuccess);
  CHECK_EQ(start(read_shared_at, 1, 50000, out.data(), 0), cudaSuccess);
  CHECK_EQ(cudaFuncSetAttribute(read_shared_at, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
           cudaErrorInvalidValue);
  CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_CASE("emulation: the host cannot touch the GPU's memory, nor anyone what is freed or behind its end") {
  set_seed(0);
  const OnGpu in(counted(64)), out(Values(kThreads, 0.0F));
  CHECK(says(last_words([&] { in.data()[0] = 1.0F; }), "the host touched"));
  const auto died = "thread (0,0,0) of block (0,0,0)";
  CHECK(says(last_words([&] {
               (void)start(read_at, 1, 0, out.data(), in.data(), 64);  // 256 bytes
               (void)cudaDeviceSynchronize();
             }),
             died));
  CHECK(says(last_words([&] {
               float* freed = nullptr;
               (void)cudaMalloc(reinterpret_cast<void**>(&freed), 256);
               (void)cudaFree(freed);
               (void)start(read_at, 1, 0, out.data(), freed, 0);
               (void)cudaDeviceSynchronize();
             }),
             died));
  CHECK_EQ(cudaMemcpy(in.data(), out.data(), 257, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_CASE("emulation: words of 8 and 16 bytes that are not aligned to them are found") {
  set_seed(0);
  const OnGpu in(counted(kThreads)), out(Values(kThreads, 0.0F));
  const auto dies = [&](void (*kernel)(float*, const float*, int), int at) {
    return says(
        last_words([&] {
          (void)start(kernel, 1, 0, out.data(), in.data(), at);
          (void)cudaDeviceSynchronize();
        }),
        "thread (0,0,0) of block (0,0,0) (of (1,1,1) blocks, 1 threads) takes a word that is not aligned");
  };
  CHECK_FALSE(dies(copy_word<uint4>, 4));
  CHECK_FALSE(dies(copy_word_to<uint2>, 2));
  CHECK(dies(copy_word<uint4>, 2));
  CHECK(dies(copy_word<uint2>, 1));
  CHECK(dies(copy_word_to<uint4>, 1));
  CHECK(dies(copy_word_to<uint2>, 3));
}

TEST_CASE("emulation: a write behind an allocation's end is found when it is freed") {
  float* memory = nullptr;
  REQUIRE_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 100), cudaSuccess);
  set_seed(0);
  (void)cudaMemsetAsync(memory, 0, 100);
  CHECK_EQ(start(read_at, 26, 0, memory, memory, 0), cudaSuccess);  // it writes 26 numbers where 25 fit
  (void)cudaFree(memory);
  CHECK_NE(forget_findings().find("wrote at byte 100 of 100 bytes"), std::string::npos);
}

namespace {

struct Streams {
  Streams() {
    for (cudaStream_t& stream : all) (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Streams() {
    for (cudaStream_t stream : all) (void)cudaStreamDestroy(stream);
    (void)cudaEventDestroy(event);
  }
  cudaStream_t all[2] = {};
  cudaEvent_t event = nullptr;
};

// One stream makes a number, the other copies it, and then the first makes the next one.
float copied_number(bool waits_for_maker, bool waits_for_copier, uint64_t seed) {
  set_seed(seed);
  const OnGpu made({0.0F}), copy({0.0F});
  Streams streams;
  const auto order = [&](int before, int after) {
    (void)cudaEventRecord(streams.event, streams.all[before]);
    (void)cudaStreamWaitEvent(streams.all[after], streams.event);
  };
  (void)cudaMemsetAsync(made.data(), 0x40, 4, streams.all[0]);
  if (waits_for_maker) order(0, 1);
  (void)cudaMemcpyAsync(copy.data(), made.data(), 4, cudaMemcpyDeviceToDevice, streams.all[1]);
  if (waits_for_copier) order(1, 0);
  (void)cudaMemsetAsync(made.data(), 0x41, 4, streams.all[0]);
  (void)cudaStreamSynchronize(streams.all[seed % 2]);
  return copy.read()[0];
}

bool is_always_right(bool waits_for_maker, bool waits_for_copier) {
  bool all = true;
  for (uint64_t seed = 0; seed < 8; ++seed)
    all = all && copied_number(waits_for_maker, waits_for_copier, seed) == __uint_as_float(0x40404040);
  return all;
}

}  // namespace

TEST_CASE("emulation: an event that is missing between two streams is found, before a read or behind it") {
  CHECK(is_always_right(true, true));
  CHECK_FALSE(is_always_right(false, true));
  CHECK_FALSE(is_always_right(true, false));
}

TEST_CASE("emulation: pinned memory that the host changes before a copy has run arrives changed") {
  set_seed(0);
  const OnGpu there({0.0F});
  Streams streams;
  float* pinned = nullptr;
  REQUIRE_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(float)), cudaSuccess);
  *pinned = 1.0F;
  (void)cudaMemcpyAsync(there.data(), pinned, 4, cudaMemcpyHostToDevice, streams.all[0]);
  *pinned = 2.0F;
  CHECK_EQ(there.read()[0], 2.0F);
  // Memory that is not pinned has been read when the call returns.
  float pageable = 3.0F;
  (void)cudaMemcpyAsync(there.data(), &pageable, 4, cudaMemcpyHostToDevice, streams.all[0]);
  pageable = 4.0F;
  CHECK_EQ(there.read()[0], 3.0F);
  CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_CASE(
    "emulation: the order of the stream null and of blocking streams is CUDA's, and others have none with "
    "it") {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    set_seed(seed);
    const OnGpu there({0.0F}), copy({0.0F});
    cudaStream_t blocking = nullptr;
    REQUIRE_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    (void)cudaMemsetAsync(there.data(), 0x40, 4, blocking);
    (void)cudaMemsetAsync(there.data(), 0x41, 4, nullptr);
    (void)cudaMemcpyAsync(copy.data(), there.data(), 4, cudaMemcpyDeviceToDevice, blocking);
    CHECK_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
    CHECK_EQ(copy.read()[0], __uint_as_float(0x41414141));
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  }
}

TEST_CASE("emulation: a graph does nothing when it is captured, and everything whenever it is started") {
  cudaStream_t stream = nullptr;
  REQUIRE_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const OnGpu from(counted(4)), to(Values(4, 0.0F));
  const size_t bytes = 4 * sizeof(float);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  CHECK_EQ(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  CHECK_EQ(status, cudaStreamCaptureStatusActive);
  REQUIRE_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  REQUIRE_EQ(cudaGraphInstantiate(&made, graph, 0), cudaSuccess);
  CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
  CHECK_EQ(to.read(), Values(4, 0.0F));
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(cudaMemsetAsync(to.data(), 0, bytes, stream), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(made, stream), cudaSuccess);
    CHECK_EQ(to.read(), counted(4));
  }
  CHECK_EQ(cudaGraphExecDestroy(made), cudaSuccess);
  CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_CASE("emulation: a call that a thread may not make while it captures is refused and spoils the graph") {
  cudaStream_t stream = nullptr;
  REQUIRE_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const OnGpu values(counted(4));
  float host = 0.0F;
  void* memory = nullptr;
  const auto spoils = [&](const auto& call) {
    cudaGraph_t graph = nullptr;
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_EQ(call(), cudaErrorStreamCaptureUnsupported);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK_EQ(graph, nullptr);
    CHECK_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  };
  spoils([&] { return cudaMalloc(&memory, 16); });
  spoils([&] { return cudaMallocAsync(&memory, 16, stream); });
  spoils([&] { return cudaStreamSynchronize(stream); });
  spoils([&] { return cudaMemcpyAsync(values.data(), &host, 4, cudaMemcpyHostToDevice, stream); });
  CHECK_EQ(values.read(), counted(4));
  CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_CASE("emulation: queries see work done only after they have let it run") {
  set_seed(0);
  const OnGpu there({0.0F});
  Streams streams;
  (void)cudaMemsetAsync(there.data(), 0x40, 4, streams.all[0]);
  (void)cudaEventRecord(streams.event, streams.all[0]);
  CHECK_EQ(cudaEventQuery(streams.event), cudaErrorNotReady);
  CHECK_EQ(cudaEventQuery(streams.event), cudaErrorNotReady);
  CHECK_EQ(cudaEventQuery(streams.event), cudaSuccess);
  CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_CASE("emulation: a product refuses addresses that its algorithm was not chosen for") {
  set_seed(0);
  const OnGpu memory(Values(64, 1.0F)), workspace(Values(16384, 0.0F));
  float* const at = memory.data();
  const float one = 1.0F, none = 0.0F;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t square = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  REQUIRE_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  REQUIRE_EQ(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  REQUIRE_EQ(cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, 2, 2, 2), CUBLAS_STATUS_SUCCESS);
  REQUIRE_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    REQUIRE_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
               CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{65536});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16});
  cublasLtMatmulHeuristicResult_t proposal{};
  int count = 0;
  REQUIRE_EQ(cublasLtMatmulAlgoGetHeuristic(handle, product, square, square, square, square, preference, 1,
                                            &proposal, &count),
             CUBLAS_STATUS_SUCCESS);
  const auto multiply = [&](float* a, float* b, float* scratch) {
    return cublasLtMatmul(handle, product, &one, a, square, b, square, &none, at, square, at, square,
                          &proposal.algo, scratch, 65536, nullptr);
  };

  CHECK_EQ(multiply(at, at + 4, workspace.data()), CUBLAS_STATUS_SUCCESS);
  CHECK_EQ(multiply(at + 4, at + 4, workspace.data()), CUBLAS_STATUS_INVALID_VALUE);
  CHECK_EQ(multiply(at, at + 2, workspace.data()), CUBLAS_STATUS_INVALID_VALUE);
  CHECK_EQ(multiply(at, at + 4, workspace.data() + 4), CUBLAS_STATUS_INVALID_VALUE);
  (void)cublasLtMatmulPreferenceDestroy(preference);
  (void)cublasLtMatrixLayoutDestroy(square);
  (void)cublasLtMatmulDescDestroy(product);
  (void)cublasLtDestroy(handle);
}

TEST_CASE("emulation: a thread that calls CUDA and has named no GPU is found") {
  REQUIRE(names_device);
  const auto found_on_a_thread = [](bool names) {
    std::thread([names] {
      if (names) (void)cudaSetDevice(0);
      (void)cudaStreamSynchronize(nullptr);
    }).join();
    return forget_findings();
  };

  CHECK(says(found_on_a_thread(false), "named no GPU"));
  CHECK_EQ(found_on_a_thread(true), "");
}
