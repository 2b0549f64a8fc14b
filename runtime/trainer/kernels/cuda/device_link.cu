// base::DeviceLink for an NVIDIA GPU. Nothing here touches the device's own state, so another thread may use it.
// Each call names the device first: on a thread that has named none, any call of the runtime makes a context on the
// node's first GPU, which takes hundreds of megabytes there.
#include <utility>

#include "runtime/trainer/kernels/cuda/launch.cuh"

namespace shardrun::kernels::cuda {
namespace {

using base::Code;
using base::DeviceLink;
using base::Error;
using base::Result;

// Turns an error of the runtime into one that is not noted on the device: the caller has it, and the next op
// will see it too.
Result<void> checked(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return Error(Code::kIo,
               std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

struct Event final : DeviceLink::Mark {
  ~Event() override {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  cudaEvent_t event = nullptr;
};

class Pinned final : public DeviceLink::PinnedMemory {
 public:
  Pinned(std::byte* data, size_t size) : PinnedMemory(data, size) {}
  ~Pinned() override { (void)cudaFreeHost(data_); }
};

class Link final : public DeviceLink {
 public:
  Link(int index, cudaStream_t compute) : index_(index), compute_(compute) {}
  ~Link() override {
    (void)cudaSetDevice(index_);
    for (cudaStream_t stream : {out_, in_}) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    }
  }

  Result<void> make_streams() {
    RETURN_IF_ERROR(name_device());
    RETURN_IF_ERROR(checked("a stream for copies", cudaStreamCreateWithFlags(&out_, cudaStreamNonBlocking)));
    return checked("a stream for copies", cudaStreamCreateWithFlags(&in_, cudaStreamNonBlocking));
  }

  Result<std::unique_ptr<PinnedMemory>> allocate_pinned(size_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(name_device());
    if (auto done =
            checked("cudaHostAlloc", cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes, cudaHostAllocDefault));
        !done) {
      return std::move(done).error().context(std::to_string(bytes) + " bytes of pinned memory");
    }
    return std::unique_ptr<PinnedMemory>(std::make_unique<Pinned>(static_cast<std::byte*>(memory), bytes));
  }

  Result<std::unique_ptr<Mark>> make_mark() override {
    auto mark = std::make_unique<Event>();
    RETURN_IF_ERROR(name_device());
    RETURN_IF_ERROR(
        checked("cudaEventCreate", cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming)));
    return std::unique_ptr<Mark>(std::move(mark));
  }

  Result<void> record(Mark& mark, Stream stream) override {
    RETURN_IF_ERROR(name_device());
    return checked("cudaEventRecord", cudaEventRecord(event_of(mark), handle(stream)));
  }
  Result<void> wait(Stream stream, const Mark& mark) override {
    RETURN_IF_ERROR(name_device());
    return checked("cudaStreamWaitEvent", cudaStreamWaitEvent(handle(stream), event_of(mark), 0));
  }
  Result<bool> is_done(const Mark& mark) override {
    RETURN_IF_ERROR(name_device());
    const cudaError_t error = cudaEventQuery(event_of(mark));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    RETURN_IF_ERROR(checked("cudaEventQuery", error));
    return true;
  }
  Result<void> copy(Stream stream, void* to, const void* from, size_t bytes) override {
    const cudaMemcpyKind kind = stream == Stream::kOut  ? cudaMemcpyDeviceToHost
                                : stream == Stream::kIn ? cudaMemcpyHostToDevice
                                                        : cudaMemcpyDeviceToDevice;
    RETURN_IF_ERROR(name_device());
    return checked("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, handle(stream)));
  }
  Result<void> drain(Stream stream) override {
    RETURN_IF_ERROR(name_device());
    return checked("cudaStreamSynchronize", cudaStreamSynchronize(handle(stream)));
  }

 private:
  Result<void> name_device() const { return checked("cudaSetDevice", cudaSetDevice(index_)); }
  static cudaEvent_t event_of(const Mark& mark) { return static_cast<const Event&>(mark).event; }
  cudaStream_t handle(Stream stream) const {
    return stream == Stream::kCompute ? compute_ : stream == Stream::kOut ? out_ : in_;
  }

  const int index_;
  const cudaStream_t compute_;
  cudaStream_t out_ = nullptr, in_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<base::DeviceLink>> Device::make_link() {
  auto link = std::make_unique<Link>(state_->index, state_->stream);
  RETURN_IF_ERROR(link->make_streams());
  return std::unique_ptr<base::DeviceLink>(std::move(link));
}

}  // namespace shardrun::kernels::cuda
