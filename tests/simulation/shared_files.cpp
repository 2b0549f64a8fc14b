#include "tests/simulation/shared_files.h"

#include <fcntl.h>

#include <cerrno>
#include <optional>

namespace shardrun::simulation {
namespace {

// Splits the first part off a path.
std::string_view next_part(std::string_view& path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  const size_t end = std::min(path.find('/'), path.size());
  const std::string_view part = path.substr(0, end);
  path.remove_prefix(end);
  while (path.starts_with('/')) path.remove_prefix(1);
  return part;
}

}  // namespace

int SharedFiles::server_look(int folder, const std::string& name) const {
  const Inode& inode = inodes_[static_cast<size_t>(folder)];
  const auto found = inode.names.find(name);
  return found == inode.names.end() ? 0 : found->second;
}

int SharedFiles::truth(std::string_view path) const {
  int at = kRoot;
  while (!path.empty() && at != 0) at = server_look(at, std::string(next_part(path)));
  return at;
}

int SharedFiles::look(int client, int folder, const std::string& name, bool afresh) {
  if (!caches_) return server_look(folder, name);
  auto& seen = seen_[{client, folder}];
  const auto known = seen.find(name);
  if (!afresh && known != seen.end() && chance_(doubt_) != 0 &&
      (known->second == 0 || !is_gone(known->second)))
    return known->second;
  return seen[name] = server_look(folder, name);
}

void SharedFiles::forget(int client, int folder) {
  if (caches_) seen_.erase({client, folder});
}

SharedFiles::Place SharedFiles::place_of(int client, std::string_view path) {
  Place place{kRoot, {}};
  while (true) {
    place.name = std::string(next_part(path));
    if (path.empty()) return place;
    const int inode = look(client, place.folder, place.name);
    if (inode == 0) return {-ENOENT, {}};
    if (!at(inode).folder) return {-ENOTDIR, {}};
    place.folder = inode;
  }
}

// A client whose handle of a folder is stale walks the path again, asking for each name.
template <typename Act>
int SharedFiles::with_place(int client, std::string_view path, const Act& act) {
  Place place = place_of(client, path);
  if (place.folder > 0 && is_gone(place.folder)) {
    for (auto& [key, names] : seen_) {
      if (key.first == client) names.clear();
    }
    place = place_of(client, path);
  }
  return place.folder < 0 ? place.folder : act(place);
}

int SharedFiles::make(int folder, const std::string& name, bool is_folder, mode_t mode) {
  if (is_gone(folder)) return -ENOENT;
  if (server_look(folder, name) != 0) return -EEXIST;
  inodes_.push_back(
      {.folder = is_folder, .mode = mode, .links = is_folder ? 2 : 1, .bytes = {}, .names = {}});
  const int inode = static_cast<int>(inodes_.size()) - 1;
  at(folder).names[name] = inode;
  return inode;
}

int SharedFiles::find(int client, std::string_view path) {
  if (path.empty() || path == "/") return kRoot;
  return with_place(client, path, [&](const Place& place) {
    const int inode = look(client, place.folder, place.name);
    return inode == 0 ? -ENOENT : inode;
  });
}

int SharedFiles::open(int client, std::string_view path, int flags, mode_t mode) {
  return with_place(client, path, [&](const Place& place) {
    int inode = look(client, place.folder, place.name, (flags & O_CREAT) != 0);
    if (inode == 0 && (flags & O_CREAT) == 0) return -ENOENT;
    if (inode != 0 && (flags & O_EXCL) != 0) return -EEXIST;
    if (inode == 0) {
      inode = make(place.folder, place.name, /*is_folder=*/false, mode);
      forget(client, place.folder);
      if (inode < 0) return inode;
    }
    if ((flags & O_TRUNC) != 0) at(inode).bytes.clear();
    if (at(inode).folder) forget(client, inode);
    return inode;
  });
}

int SharedFiles::open_folder(int client, std::string_view path) {
  const int inode = find(client, path);
  if (inode < 0) return inode;
  if (!at(inode).folder) return -ENOTDIR;
  forget(client, inode);
  return inode;
}

int SharedFiles::make_folder(int client, std::string_view path, mode_t mode) {
  if (path.empty() || path == "/") return -EEXIST;
  return with_place(client, path, [&](const Place& place) {
    const int made = make(place.folder, place.name, /*is_folder=*/true, mode);
    forget(client, place.folder);
    return made;
  });
}

int SharedFiles::link(int client, std::string_view from, std::string_view to) {
  const int inode = find(client, from);
  if (inode < 0) return inode;
  return with_place(client, to, [&](const Place& place) {
    forget(client, place.folder);
    if (is_gone(place.folder) || is_gone(inode)) return -ENOENT;
    if (server_look(place.folder, place.name) != 0) return -EEXIST;
    at(place.folder).names[place.name] = inode;
    ++at(inode).links;
    return 0;
  });
}

int SharedFiles::remove_name(int folder, const std::string& name, bool is_folder) {
  const int inode = server_look(folder, name);
  if (inode == 0) return -ENOENT;
  if (at(inode).folder != is_folder) return is_folder ? -ENOTDIR : -EISDIR;
  if (is_folder && !at(inode).names.empty()) return -ENOTEMPTY;
  at(folder).names.erase(name);
  at(inode).links -= is_folder ? 2 : 1;
  return 0;
}

int SharedFiles::unlink(int client, std::string_view path) {
  return with_place(client, path, [&](const Place& place) {
    forget(client, place.folder);
    return remove_name(place.folder, place.name, /*is_folder=*/false);
  });
}

int SharedFiles::remove_folder(int client, std::string_view path) {
  return with_place(client, path, [&](const Place& place) {
    forget(client, place.folder);
    return remove_name(place.folder, place.name, /*is_folder=*/true);
  });
}

int SharedFiles::find_in(int folder, const std::string& name) {
  const int inode = server_look(folder, name);
  return inode == 0 ? -ENOENT : inode;
}

int SharedFiles::unlink_in(int folder, const std::string& name, bool is_folder) {
  return remove_name(folder, name, is_folder);
}

int SharedFiles::move(const Place& from, const Place& to, bool exchange) {
  if (is_gone(from.folder) || is_gone(to.folder)) return -ENOENT;
  const int moved = server_look(from.folder, from.name), there = server_look(to.folder, to.name);
  if (moved == 0) return -ENOENT;
  if (exchange) {
    if (caches_) return -EINVAL;  // as NFS
    if (there == 0) return -ENOENT;
    at(from.folder).names[from.name] = there;
    at(to.folder).names[to.name] = moved;
    return 0;
  }
  if (moved == there) return 0;
  if (there != 0) {
    if (at(moved).folder && !at(there).folder) return -ENOTDIR;
    if (!at(moved).folder && at(there).folder) return -EISDIR;
    const int removed = remove_name(to.folder, to.name, at(there).folder);
    if (removed != 0) return removed;
  }
  at(from.folder).names.erase(from.name);
  at(to.folder).names[to.name] = moved;
  return 0;
}

int SharedFiles::rename(int client, std::string_view from, std::string_view to, bool exchange) {
  return with_place(client, from, [&](const Place& source) {
    return with_place(client, to, [&](const Place& target) {
      forget(client, source.folder);
      forget(client, target.folder);
      return move(source, target, exchange);
    });
  });
}

}  // namespace shardrun::simulation
