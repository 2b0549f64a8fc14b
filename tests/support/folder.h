// Files of tests, and a temporary folder that belongs to one test and is removed with it.
//
// Thread rule: thread-compatible.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <doctest/doctest.h>

namespace shardrun::tests {

// Returns the bytes of a file; "" when it cannot be read.
inline std::string read_back(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

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
    write_file(*this / name, text);
    return *this / name;
  }

 private:
  std::string path_;
};

}  // namespace shardrun::tests
