#include "launcher/submit/remote.h"

#include <doctest/doctest.h>

using namespace shardrun::launcher;

TEST_CASE("remote: a ~ before the directory there is the home folder there, and no folder's name") {
  const auto directory_of = [](const std::string& directory) {
    return in_directory(RemoteHost{"me@login", directory, "shardrun"}, {"true"}).at(4);
  };
  CHECK_EQ(directory_of("~/jobs"), "./jobs");
  CHECK_EQ(directory_of("~"), ".");
  CHECK_EQ(directory_of("/fsx/me/~"), "/fsx/me/~");
  CHECK_EQ(directory_of("~old"), "~old");
}

TEST_CASE("remote: what csh and fish would read in quotes goes there outside of them") {
  const auto argv = ssh_command(RemoteHost{"me@login", "~", "shardrun"}, {"echo", "it's $A !b \\\\ c"});
  CHECK_EQ(argv.back(), R"('echo' 'it'\''s $A '\!'b '\\''\\' c')");
}
