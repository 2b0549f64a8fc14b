// A shared file system in memory, as several clients see it: each operation takes effect at the server in one step.
//
// Without caches every client sees the server's names at any moment, as processes of one machine do. With caches a client may
// go on using a name as it last saw it, whether it was there or not, and whatever has become of it since: for a file or folder
// that was renamed this is the old place of the same inode, as with the file handles of NFS. What a client saw of a folder's
// names is given up when it opens that folder, or changes a name in it; otherwise chance decides at each use. A handle of
// something that was removed makes the client ask again. Names are created, linked, renamed and removed at the server alone.
//
// Errors are negative errno values. Thread rule: thread-compatible.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::simulation {

struct Inode {
  bool folder = false;
  mode_t mode = 0;
  int links = 0;
  std::string bytes;
  std::map<std::string, int, std::less<>> names;  // of a folder
};

class SharedFiles {
 public:
  // `chance(n)` returns a number in [0, n).
  SharedFiles(bool caches, std::function<int(int)> chance)
      : caches_(caches), chance_(std::move(chance)), doubt_(2 << (3 * chance_(3))) {
    inodes_.resize(kRoot + 1);
    inodes_[kRoot] = {.folder = true, .mode = 0755, .links = 2, .bytes = {}, .names = {}};
  }

  bool caches() const { return caches_; }
  Inode& at(int inode) { return inodes_[static_cast<size_t>(inode)]; }
  // What is at a path at the server; 0 when nothing is.
  int truth(std::string_view path) const;

  // Each returns an inode, or a negative errno.
  int find(int client, std::string_view path);
  int open(int client, std::string_view path, int flags, mode_t mode);
  int open_folder(int client, std::string_view path);
  int make_folder(int client, std::string_view path, mode_t mode);
  // Return 0 or a negative errno.
  int link(int client, std::string_view from, std::string_view to);
  int unlink(int client, std::string_view path);
  int remove_folder(int client, std::string_view path);
  int rename(int client, std::string_view from, std::string_view to, bool exchange);
  // The same for a name in a folder that is open.
  int find_in(int folder, const std::string& name);
  int unlink_in(int folder, const std::string& name, bool is_folder);

 private:
  static constexpr int kRoot = 1;
  struct Place {
    int folder = 0;  // negative: an errno
    std::string name;
  };

  Place place_of(int client, std::string_view path);
  template <typename Act>
  int with_place(int client, std::string_view path, const Act& act);
  int look(int client, int folder, const std::string& name, bool afresh = false);
  int server_look(int folder, const std::string& name) const;
  void forget(int client, int folder);
  int make(int folder, const std::string& name, bool is_folder, mode_t mode);
  int remove_name(int folder, const std::string& name, bool is_folder);
  int move(const Place& from, const Place& to, bool exchange);
  bool is_gone(int inode) const { return inodes_[static_cast<size_t>(inode)].links == 0; }

  bool caches_;
  std::function<int(int)> chance_;
  int doubt_;  // a client asks again with the probability 1 / doubt, though it has seen a name
  std::vector<Inode> inodes_;
  std::map<std::pair<int, int>, std::map<std::string, int, std::less<>>>
      seen_;  // by client and folder: name → inode, or 0
};

}  // namespace shardrun::simulation
