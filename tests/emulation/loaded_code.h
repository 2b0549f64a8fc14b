// Code that a program loads into the emulated GPU: a file laid out as a cubin, behind which lies a shared object for the CPU
// (tests/emulation/nvrtc.cpp makes both).
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
  // `code` is as long as it says itself.
  static std::variant<std::unique_ptr<LoadedCode>, Refusal> load(const void* code);
  // Null: no such function.
  void* find(const std::string& name) const;

 private:
  explicit LoadedCode(void* library) : library_(library) {}
  void* library_;  // for good
};

}  // namespace shardrun::emulation
