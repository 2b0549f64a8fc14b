#include "runtime/base/trust.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include <doctest/doctest.h>

#include "runtime/base/io.h"
#include "tests/support/folder.h"

using namespace shardrun;
using tests::Folder;

namespace {

std::string refusal(const base::Result<void>& checked) {
  return checked ? "" : checked.error().to_string();
}

// The site's list while it lives.
struct Trusted {
  explicit Trusted(const std::string& folders) { ::setenv(base::kTrustedFolders, folders.c_str(), 1); }
  ~Trusted() { ::unsetenv(base::kTrustedFolders); }
};

}  // namespace

TEST_CASE("trust: a file below a folder that others can write is refused with the folder and the mend") {
  const Folder folder;
  REQUIRE(base::make_directories(folder / "open/mine"));
  const std::string file = folder.file("open/mine/job.toml", "x");
  REQUIRE_EQ(::chmod((folder / "open").c_str(), 0755), 0);
  CHECK_EQ(refusal(base::refuse_if_others_write(file)), "");

  REQUIRE_EQ(::chmod((folder / "open").c_str(), 0757), 0);
  const std::string words = refusal(base::refuse_if_others_write(file));
  CHECK_NE(words.find("others can write into " + folder.path() + "/open, which belongs to user "),
           std::string::npos);
  CHECK_NE(words.find("chmod go-w " + folder.path() +
                      "/open, or name a folder that you trust in SHARDRUN_TRUSTED_FOLDERS"),
           std::string::npos);

  REQUIRE_EQ(::chmod((folder / "open").c_str(), 01777), 0);  // as /tmp
  CHECK_EQ(refusal(base::refuse_if_others_write(file)), "");
  CHECK_NE(refusal(base::refuse_if_others_write(folder / "open")), "");
}

TEST_CASE("trust: a site vouches for a folder and those above it, not for what is below") {
  const Folder folder;
  REQUIRE(base::make_directories(folder / "site/team"));
  const std::string file = folder.file("site/team/job.toml", "x");
  REQUIRE_EQ(::chmod((folder / "site").c_str(), 0777), 0);
  REQUIRE_EQ(::chmod((folder / "site/team").c_str(), 0755), 0);
  const Trusted trusted("/nowhere:" + (folder / "site") + "/");
  CHECK_EQ(refusal(base::refuse_if_others_write(file)), "");

  REQUIRE_EQ(::chmod((folder / "site/team").c_str(), 0777), 0);
  CHECK_NE(refusal(base::refuse_if_others_write(file)), "");
}

TEST_CASE("trust: a path that is not there yet is judged by where it will be made") {
  const Folder folder;
  REQUIRE(base::make_directories(folder / "open"));
  REQUIRE_EQ(::chmod((folder / "open").c_str(), 01777), 0);
  CHECK_EQ(refusal(base::refuse_if_others_make(folder / "open/runs/x")),
           "");  // nobody else can take away what we make
  REQUIRE_EQ(::chmod((folder / "open").c_str(), 0777), 0);
  CHECK_NE(refusal(base::refuse_if_others_make(folder / "open/runs/x")), "");
}

TEST_CASE("trust: a folder of another user or group above ours is refused with its owner") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can give a folder away");
    return;
  }
  const Folder folder;
  REQUIRE(base::make_directories(folder / "theirs/ours"));
  const std::string file = folder.file("theirs/ours/plan.json", "x");
  REQUIRE_EQ(::chmod((folder / "theirs").c_str(), 0775), 0);
  REQUIRE_EQ(::chown((folder / "theirs").c_str(), 0, 65534), 0);
  CHECK_NE(refusal(base::refuse_if_others_write(file)).find("others can write into " + (folder / "theirs")),
           std::string::npos);
  REQUIRE_EQ(::chown((folder / "theirs").c_str(), 65534, 65534), 0);
  CHECK_NE(refusal(base::refuse_if_others_write(file))
               .find(folder.path() + "/theirs belongs to user nobody (65534)"),
           std::string::npos);
  CHECK_NE(refusal(base::refuse_if_others_make(folder / "theirs/ours/new")), "");
}
