// Tests base::Plugin against files that are wrong in one way each.
#include "runtime/base/plugin_host.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "plugins/abi/comm_v1.h"
#include "runtime/base/io.h"
#include "tests/support/folder.h"

using namespace shardrun::base;
using shardrun::tests::Folder;
namespace fs = std::filesystem;

namespace {

const PluginInterface kComm = {
    .symbol = SHARDRUN_COMM_V1_SYMBOL, .abi_major = 1, .smallest_struct = sizeof(shardrun_comm_v1_table)};

std::string sample(const std::string& kind) {
  return fmt::format("{}/libbroken_{}.so", BROKEN_PLUGINS, kind);
}

Error refusal_of(const std::string& path) {
  auto plugin = Plugin::open(path, kComm);
  if (plugin) return Error(Code::kInvalid, "it was loaded");
  return std::move(plugin).error();
}

void check_refused(const std::string& kind, Code code, const std::string& expected) {
  const Error error = refusal_of(sample(kind));
  CAPTURE(error.to_string());
  CHECK(error.code() == code);
  CHECK(error.to_string().find(sample(kind)) != std::string::npos);
  CHECK(error.to_string().find(expected) != std::string::npos);
}

}  // namespace

TEST_CASE("plugin host: a right plugin is loaded and shows its header") {
  auto plugin = Plugin::open(sample("none"), kComm);

  REQUIRE(plugin);
  CHECK(std::string(plugin->header().name) == "broken");
  CHECK(&plugin->table<shardrun_comm_v1_table>().header == &plugin->header());
}

TEST_CASE("plugin host: a wrong header is refused with the file, what was expected and what was found") {
  check_refused("WRONG_MAGIC", Code::kUnsupported, "expected magic 6e75726472616873, found 1122334455667788");
  check_refused("WRONG_MAJOR", Code::kUnsupported, "expected abi_major 1, found 9");
  check_refused("WRONG_SIZE", Code::kUnsupported, "bytes, found 64");
  check_refused("WRONG_SYMBOL", Code::kUnsupported, "expected the symbol shardrun_comm_v1, found none");
}

TEST_CASE("plugin host: a plugin that lacks a function is refused with the function's name") {
  check_refused("UNRESOLVED", Code::kUnsupported, "function_that_nobody_has");
}

TEST_CASE("plugin host: a constructor that aborts or exits costs the probe, not this process") {
  check_refused("ABORTS", Code::kUnsupported, "ends the process with signal 6");
  check_refused("EXITS", Code::kUnsupported, "ends the process with code 7");
}

TEST_CASE("plugin host: a constructor that hangs costs what patience the caller has") {
  PluginInterface impatient = kComm;
  impatient.patience = std::chrono::milliseconds(300);

  const auto plugin = Plugin::open(sample("HANGS"), impatient);

  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().code() == Code::kUnsupported);
  CHECK(plugin.error().message().find("loading it takes more than 0.3 s") != std::string::npos);
}

TEST_CASE("plugin host: what is no shared object at all is refused") {
  const Folder folder;
  const std::string path = folder.path() + "/plugin.so";
  REQUIRE(write_file_atomically(path, "#!/bin/sh\necho no\n"));

  CHECK(refusal_of(path).code() == Code::kUnsupported);
  CHECK(refusal_of(folder.path()).code() == Code::kRefused);
}

TEST_CASE("plugin host: a relative path is refused, an absent file is not found") {
  CHECK(refusal_of("libbroken_none.so").code() == Code::kInvalid);
  CHECK(refusal_of("libbroken_none.so").message().find("is not absolute") != std::string::npos);
  CHECK(refusal_of("").code() == Code::kInvalid);
  CHECK(refusal_of("/nowhere/plugin.so").code() == Code::kNotFound);
}

TEST_CASE("plugin host: a file or folder that others may write is refused, also behind a link") {
  const Folder folder;
  const std::string path = folder.path() + "/plugin.so";
  fs::copy_file(sample("none"), path);
  const fs::path link = folder.path() + "/link.so";
  fs::create_symlink(path, link);

  chmod(path.c_str(), 0755);
  CHECK(Plugin::open(path, kComm));
  CHECK(Plugin::open(link, kComm));

  for (const mode_t mode : {0777, 0757}) {
    chmod(path.c_str(), mode);
    CHECK(refusal_of(path).code() == Code::kRefused);
    CHECK(refusal_of(path).to_string().find("others can write into " + path + ", which belongs to user ") !=
          std::string::npos);
    CHECK(refusal_of(link).code() == Code::kRefused);
  }
  chmod(path.c_str(), 0755);
  chmod(folder.path().c_str(), 0777);
  CHECK(refusal_of(path).code() == Code::kRefused);
}

TEST_CASE("plugin host: another user's file is refused") {
  if (geteuid() != 0) {
    MESSAGE("skipped: only root can give a file away");
    return;
  }
  const Folder folder;
  const std::string path = folder.path() + "/plugin.so";
  fs::copy_file(sample("none"), path);
  chmod(path.c_str(), 0755);
  REQUIRE(chown(path.c_str(), 65534, 65534) == 0);

  CHECK(refusal_of(path).code() == Code::kRefused);
  CHECK(refusal_of(path).to_string().find("belongs to user nobody (65534)") != std::string::npos);
}
