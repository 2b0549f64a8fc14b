// A temporary folder that belongs to one test and is removed with it.
//
// Thread rule: thread-compatible.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

namespace shardrun::tests {

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "shardrun-test-XXXXXX").string()) {
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Makes a file with this text and returns its path.
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }

 private:
  std::string path_;
};

}  // namespace shardrun::tests
