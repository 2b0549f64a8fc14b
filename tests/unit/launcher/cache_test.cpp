#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launcher/submit/cache.h"
#include "runtime/contract/compile_cache.h"
#include "tests/support/folder.h"

using namespace shardrun;
using tests::Folder;
namespace fs = std::filesystem;

namespace {

spec::JobSpec spec_at(const std::string& origin) {
  spec::JobSpec spec;
  spec.origins["precompile.cache"] = origin;
  return spec;
}

}  // namespace

TEST_CASE("cache: it is made for its user alone, with the folders above it") {
  const Folder folder;
  const std::string cache = folder.path() + "/a/b/cache";

  REQUIRE(launcher::prepare_cache({}, cache));
  REQUIRE(launcher::prepare_cache({}, cache));

  CHECK(fs::status(cache).permissions() == fs::perms::owner_all);
}

TEST_CASE("cache: one that others can write into is refused with its place and a mend") {
  const Folder folder;
  for (const unsigned mode : {0777U, 0702U}) {
    CAPTURE(mode);
    REQUIRE_EQ(::chmod(folder.path().c_str(), mode), 0);
    const auto refused = launcher::prepare_cache(spec_at("job.toml:9:9"), folder.path());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == base::Code::kRefused);
    CHECK(refused.error().to_string().starts_with(
        "job.toml:9:9: compiled code is run: others can write into " + folder.path()));
    CHECK_NE(refused.error().to_string().find("chmod go-w " + folder.path()), std::string::npos);
  }
  REQUIRE_EQ(::chmod(folder.path().c_str(), 0755), 0);
  CHECK(launcher::prepare_cache({}, folder.path()));
}

TEST_CASE("cache: a file, and a folder of somebody else, are refused") {
  const Folder folder;
  std::ofstream(folder.path() + "/file") << "x";
  const auto file = launcher::prepare_cache({}, folder.path() + "/file");
  REQUIRE_FALSE(file);
  CHECK_NE(file.error().to_string().find(folder.path() + "/file"), std::string::npos);
  if (::geteuid() != 0) return;
  REQUIRE_EQ(::chown(folder.path().c_str(), 1, 1), 0);
  const auto refused = launcher::prepare_cache({}, folder.path());
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("belongs to user daemon (1)"), std::string::npos);
}

TEST_CASE("cache: a relative folder starts at the working directory") {
  spec::JobSpec spec;
  spec.precompile.cache = "cache";
  CHECK_EQ(*contract::compile_cache_folder(spec, "/w"), "/w/cache");
  spec.precompile.cache = "/fsx/cache";
  CHECK_EQ(*contract::compile_cache_folder(spec, "/w"), "/fsx/cache");
}
