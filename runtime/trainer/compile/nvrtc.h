// Nvrtc: NVIDIA's compiler as a library, opened at run time. It needs no GPU, so a head node compiles for any architecture
// that it is told.
//
// Thread rule: thread-safe after find(). A compilation runs in the calling thread and cannot be interrupted.
// Source: https://docs.nvidia.com/cuda/nvrtc/ (the C interface, unchanged since CUDA 11.1).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/compile/compiler.h"

namespace shardrun::compile {

class Nvrtc final : public Compiler {
 public:
  // libnvrtc.so.13, else .12: in LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda and its neighbours, or where the
  // dynamic linker looks. kNotFound with the mend; kRefused when others could replace it; kUnsupported when it does not
  // compile for `architecture` ("sm_90").
  static Result<Nvrtc> find(const std::string& architecture);
  // The same for a library that is named.
  static Result<Nvrtc> open(const std::string& path, const std::string& architecture);
  // One that another node has: what it compiled is found by its name, and compile() fails with `why` this node has none.
  static Nvrtc absent(std::string identity, const std::string& architecture, base::Error why);

  // "NVRTC 13.0 (104857600 bytes)": versions have no third part, so the library's size tells builds apart.
  const std::string& identity() const override { return identity_; }
  std::vector<std::string> flags() const override;
  Result<Entry> compile(const Recipe& recipe, const std::string& scratch,
                        const std::function<void()>& tick) const override;
  // A cubin of the architecture with the kernel's functions.
  Result<void> check(const Recipe& recipe, const std::string& code) const override;

 private:
  struct Library;
  Nvrtc() = default;
  std::shared_ptr<const Library> library_;  // stays loaded: NVRTC does not unload cleanly
  std::string identity_, architecture_;
  std::optional<base::Error> absence_;
};

}  // namespace shardrun::compile
