#include "launcher/submit/snapshot.h"

#include <charconv>
#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;

constexpr auto kLimit = std::chrono::minutes(10);
constexpr const char* kKey = "program.snapshot";

Result<std::string> ask_git(const spec::JobSpec& spec, const std::string& directory,
                            const std::vector<std::string>& words) {
  // `git stash create` writes a commit object, which has an author.
  std::vector<std::string> argv = {
      "git", "-c", "user.name=shardrun", "-c", "user.email=shardrun@localhost", "-C", directory};
  argv.insert(argv.end(), words.begin(), words.end());
  auto answer = base::run_command(argv, "", kLimit);
  if (answer) return std::move(answer->out);
  return Error(
      Code::kInvalid,
      fmt::format(
          "{}: a snapshot is taken of a git repository with a commit: {}; commit what the job needs, or "
          "remove snapshot",
          spec.origin(kKey), spec::printable(answer.error().message(), 400)));
}

std::string without_newline(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Error too_large(const spec::JobSpec& spec, const std::string& what) {
  return Error(
      Code::kInvalid,
      fmt::format(
          "{}: {}, and a snapshot holds at most {} MiB; keep data out of the repository and name it by an "
          "absolute path",
          spec.origin(kKey), what, Snapshot::kMostBytes >> 20));
}

bool is_tree(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The commit to send: what is checked out, or with the changes of tracked files.
Result<std::string> commit_of(const spec::JobSpec& spec, const std::string& top) {
  ASSIGN_OR_RETURN(auto head, ask_git(spec, top, {"rev-parse", "--verify", "HEAD^{commit}"}));
  head = without_newline(std::move(head));
  if (spec.program.snapshot != spec::SnapshotKind::kGitWithChanges) return head;
  ASSIGN_OR_RETURN(auto changed, ask_git(spec, top, {"stash", "create"}));
  changed = without_newline(std::move(changed));
  return changed.empty() ? head : changed;
}

}  // namespace

TreeWeight weigh_tree(std::string_view list) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TreeWeight weight;
  while (!list.empty()) {
    std::string_view entry = base::take_until(list, '\0');
    const size_t tab = entry.find('\t');
    if (tab == std::string_view::npos) continue;
    const std::string_view facts = entry.substr(0, tab), size = facts.substr(facts.rfind(' ') + 1);
    int64_t bytes = 0;
    std::from_chars(size.data(), size.data() + size.size(), bytes);
    if (bytes <= 0) continue;
    weight.bytes = weight.bytes > kMost - bytes ? kMost : weight.bytes + bytes;
    if (bytes <= weight.largest_bytes) continue;
    weight.largest_bytes = bytes;
    weight.largest = entry.substr(tab + 1);
  }
  return weight;
}

Result<Snapshot> take_snapshot(const spec::JobSpec& spec, const std::string& directory,
                               const std::string& folder) {
  Snapshot snapshot;
  ASSIGN_OR_RETURN(auto top, ask_git(spec, directory, {"rev-parse", "--show-toplevel"}));
  top = without_newline(std::move(top));
  ASSIGN_OR_RETURN(auto prefix, ask_git(spec, directory, {"rev-parse", "--show-prefix"}));
  snapshot.prefix = without_newline(std::move(prefix));
  ASSIGN_OR_RETURN(auto commit, commit_of(spec, top));
  ASSIGN_OR_RETURN(auto tree, ask_git(spec, top, {"rev-parse", "--verify", commit + "^{tree}"}));
  snapshot.tree = without_newline(std::move(tree));
  ASSIGN_OR_RETURN(auto list, ask_git(spec, top, {"ls-tree", "-r", "-l", "-z", "--full-tree", commit}));
  const TreeWeight weight = weigh_tree(list);
  if (weight.bytes > Snapshot::kMostBytes) {
    return too_large(spec, fmt::format("the tree has {} MiB, of which {} has {} MiB", weight.bytes >> 20,
                                       spec::printable(weight.largest), weight.largest_bytes >> 20));
  }
  if (spec.program.snapshot == spec::SnapshotKind::kGit) {
    ASSIGN_OR_RETURN(auto changes, ask_git(spec, top, {"status", "--porcelain", "--untracked-files=no"}));
    if (!changes.empty())
      snapshot.warnings.push_back(fmt::format(
          "{}: the job runs commit {} without the changes to tracked files since; commit them, or write "
          "snapshot = \"git+changes\"",
          spec.origin(kKey), commit.substr(0, 12)));
  }
  snapshot.tar = folder + "/" + snapshot.tree + ".tar";
  RETURN_IF_ERROR(ask_git(spec, top, {"archive", "--format=tar", "--output=" + snapshot.tar, commit}));
  // Filters of the repository may have made files larger than git holds them.
  std::error_code ignored;
  const auto bytes = static_cast<int64_t>(fs::file_size(snapshot.tar, ignored));
  if (bytes > 2 * Snapshot::kMostBytes)
    return too_large(spec, fmt::format("the tar file has {} MiB", bytes >> 20));
  return snapshot;
}

Result<Snapshot> received_snapshot(const std::string& tar, const std::string& prefix) {
  const fs::path path(tar), inside(prefix);
  bool leaves = inside.is_absolute();
  for (const fs::path& part : inside) leaves = leaves || part == "..";
  Snapshot snapshot{tar, path.stem().string(), prefix, {}};
  if (path.extension() == ".tar" && is_tree(snapshot.tree) && !leaves) return snapshot;
  return Error(Code::kInvalid,
               fmt::format("{} with the folder \"{}\" is no snapshot that shardrun sent; submit with --host",
                           spec::printable(tar), spec::printable(prefix)));
}

Result<std::string> unpack_snapshot(const Snapshot& snapshot, const std::string& folder) {
  const std::string root = folder + "/" + snapshot.tree;
  std::error_code ignored;
  fs::remove_all(root, ignored);
  RETURN_IF_ERROR(base::make_directories(root));
  auto unpacked = base::run_command({"tar", "--extract", "--no-same-owner", "--file=" + snapshot.tar,
                                     "--force-local", "--directory=" + root},
                                    "", kLimit);
  if (!unpacked) return std::move(unpacked).error().context("unpacking the snapshot into " + root);
  std::string inside = root + "/" + snapshot.prefix;
  while (inside.size() > 1 && inside.back() == '/') inside.pop_back();
  RETURN_IF_ERROR(base::make_directories(inside));  // git keeps no empty folder
  return inside;
}

}  // namespace shardrun::launcher
