// Code that a program loads into the emulated GPU: a file laid out as a cubin, followed by a shared object for the
// CPU (tests/emulation/nvrtc.cpp makes both).
//
// Thread rule: under the runtime's lock.
#pragma once

#include <memory>
#include <string>
#include <variant>

namespace shardrun::emulation {

class LoadedCode {
 public:
  enum class Refusal { kNoCode, kOtherArchitecture };
  // The header of `code` says how long it is.
  static std::variant<std::unique_ptr<LoadedCode>, Refusal> load(const void* code);
  // Returns null if there is no such function.
  void* find(const std::string& name) const;

 private:
  explicit LoadedCode(void* library) : library_(library) {}
  void* library_;  // it stays loaded
};

}  // namespace shardrun::emulation
