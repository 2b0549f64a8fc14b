// PluginHost: loads a plugin of plugins/abi from an absolute path, after a child process has tried it.
//
// Before anything of the file runs in this process: the path must be absolute; the file and its folder must belong
// to root or to us and be writable by their owner only; a child loads it and checks its header (magic, abi_major,
// struct_size, in this order), so a constructor that crashes, exits or hangs costs only the child. Then this
// process loads it with RTLD_NOW | RTLD_LOCAL. No other file is ever tried instead.
//
// Errors: kInvalid for a relative path; kNotFound if there is no such file; kRefused for its owner or permissions;
// kUnsupported for a file that is not a plugin or whose header does not match: names the file, what was expected
// and what was found.
//
// Thread rule: open before other threads exist (it forks); a Plugin is thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "plugins/abi/plugin.h"
#include "runtime/base/result.h"

namespace shardrun::base {

struct PluginInterface {
  std::string symbol;  // the name of the table, e.g. "shardrun_comm_v1"
  uint16_t abi_major = 1;
  // Sizeof the table that the host was compiled with; a longer one is newer and fine.
  uint32_t smallest_struct = 0;
  std::chrono::milliseconds patience{10000};  // how long the child may take to load it
};

// Owns one loaded plugin; unloads it on destruction. Move-only.
class Plugin {
 public:
  static Result<Plugin> open(const std::string& path, const PluginInterface& interface);
  Plugin(Plugin&& other) noexcept;
  Plugin& operator=(Plugin&& other) noexcept;
  ~Plugin();

  const shardrun_plugin_header& header() const { return *header_; }
  // The whole table, whose first member is the header.
  template <typename Table>
  const Table& table() const {
    return *reinterpret_cast<const Table*>(header_);
  }

 private:
  Plugin(void* handle, const shardrun_plugin_header* header) : handle_(handle), header_(header) {}

  void* handle_ = nullptr;
  const shardrun_plugin_header* header_ = nullptr;
};

}  // namespace shardrun::base
