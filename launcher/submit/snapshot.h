// The code snapshot of a job: the tree of a git repository, as one tar file that runs are unpacked from.
//
// Untracked files are never part of it, so neither are secrets, data and outputs that nobody committed.
// Thread rule: free functions; all but weigh_tree() and received_snapshot() run git or tar and wait.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

struct Snapshot {
  static constexpr int64_t kMostBytes = int64_t{256} << 20;  // of the files in it

  std::string tar;                    // the tar file
  std::string tree;                   // git's hash of the tree, in hexadecimal digits
  std::string prefix;                 // the folder in the tree where the job was submitted: "" or "folder/"
  std::vector<std::string> warnings;  // what is left out that a person may miss
};

// What the files of a tree weigh together, and the largest of them.
struct TreeWeight {
  int64_t bytes = 0, largest_bytes = 0;
  std::string largest;  // its path
};

// Reads `git ls-tree -r -l -z`: "mode type object size<TAB>path" and a zero byte; the size of what is no file is "-". A sum that
// int64_t does not hold is the largest number.
TreeWeight weigh_tree(std::string_view list);

// Writes the tree that `directory` belongs to into `folder`/<tree>.tar: the commit that is checked out, with snapshot =
// "git+changes" also what was changed in tracked files. The repository is not changed. kInvalid, "origin: what; mend", where
// there is no repository or no commit, and where the files have more than kMostBytes.
base::Result<Snapshot> take_snapshot(const spec::JobSpec& spec, const std::string& directory,
                                     const std::string& folder);

// Takes a snapshot that was taken elsewhere. kInvalid when the file's name is not <tree>.tar or the prefix leaves the tree.
base::Result<Snapshot> received_snapshot(const std::string& tar, const std::string& prefix);

// Unpacks into `folder`/<tree>, which is made anew, and returns the absolute path of the prefix in it.
base::Result<std::string> unpack_snapshot(const Snapshot& snapshot, const std::string& folder);

}  // namespace shardrun::launcher
