// What names an entry of the kernel cache, and what is never taken for one.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "runtime/base/io.h"
#include "runtime/trainer/compile/digest.h"
#include "runtime/trainer/compile/entry.h"
#include "runtime/trainer/compile/kernel_cache.h"
#include "runtime/trainer/compile/recipe.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::compile;
using shardrun::tests::Folder;
namespace fs = std::filesystem;

namespace {

const kernels::KernelShape kShape{kernels::Op::kRope, kernels::DType::kBf16, 64};

}  // namespace

TEST_CASE("sha256_is_that_of_the_standard") {
  // FIPS 180-2, appendix B.1.
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("an_entry_is_named_by_everything_that_decides_its_code") {
  const Recipe recipe = recipe_of(kShape, "c++ 12", {"-O3"});
  const std::string digest = digest_of(recipe);
  CHECK(digest == digest_of(recipe_of(kShape, "c++ 12", {"-O3"})));
  CHECK(digest != digest_of(recipe_of(kShape, "c++ 13", {"-O3"})));
  for (const kernels::KernelShape& other :
       {kernels::KernelShape{kernels::Op::kRope, kernels::DType::kBf16, 128},
        {kernels::Op::kRope, kernels::DType::kFp32, 64},
        {kernels::Op::kSwiGluForward, kernels::DType::kBf16, 64}}) {
    CHECK(digest != digest_of(recipe_of(other, "c++ 12", {"-O3"})));
  }
  Recipe changed = recipe;
  changed.flags.push_back("-Os");
  CHECK(digest != digest_of(changed));
  changed = recipe;
  changed.translation_unit += " ";
  CHECK(digest != digest_of(changed));
}

TEST_CASE("an_entry_comes_back_as_it_was_and_no_damaged_one_does") {
  const Entry entry{Entry::Kind::kFailure, "rope_bf16_64", 1830, std::string("error: no\n\0binary", 17)};
  const std::string bytes = to_bytes(entry);
  const auto back = parse_entry(bytes);
  REQUIRE(back);
  CHECK(back->kind == entry.kind);
  CHECK(back->name == entry.name);
  CHECK(back->milliseconds == entry.milliseconds);
  CHECK(back->payload == entry.payload);
  for (size_t length = 0; length < bytes.size(); ++length) CHECK_FALSE(parse_entry(bytes.substr(0, length)));
  CHECK_FALSE(parse_entry(bytes + "x"));
  CHECK_FALSE(parse_entry(std::string(bytes).replace(bytes.find("1830"), 4, "01830")));
  for (size_t at = bytes.find("sha256"); at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK_FALSE(parse_entry(damaged));
  }
}

TEST_CASE("a_damaged_entry_is_put_aside_and_named") {
  const Folder folder;
  const auto cache = KernelCache::open(folder.path() + "/kernels");
  REQUIRE(cache);
  REQUIRE(cache->publish("d1", {Entry::Kind::kLibrary, "rope_bf16_64", 5, "code"}));
  std::string damage;
  auto found = cache->look_up("d1", &damage);
  REQUIRE(found);
  REQUIRE(found->has_value());
  CHECK((*found)->payload == "code");
  CHECK(damage.empty());

  auto bytes = base::read_file(cache->path_of("d1")).value();
  bytes.back() = 'X';
  REQUIRE(base::write_file_atomically(cache->path_of("d1"), bytes));
  found = cache->look_up("d1", &damage);
  REQUIRE(found);
  CHECK_FALSE(found->has_value());
  CHECK(damage.find("SHA-256") != std::string::npos);
  CHECK(damage.find(cache->path_of("d1") + ".damaged") != std::string::npos);
  CHECK(fs::exists(cache->path_of("d1") + ".damaged"));
}

TEST_CASE("a_cache_that_others_could_write_is_refused") {
  const Folder folder;
  const std::string open_folder = folder.path() + "/open", inside = open_folder + "/inside";
  REQUIRE(KernelCache::open(inside));
  struct stat status {};
  REQUIRE(::stat(inside.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  for (const mode_t mode : {0770, 0707, 01777}) {
    REQUIRE(::chmod(inside.c_str(), mode) == 0);
    const auto refused = KernelCache::open(inside);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == base::Code::kRefused);
    CHECK(refused.error().to_string().find("chmod go-w " + fs::canonical(inside).string()) !=
          std::string::npos);
  }
  REQUIRE(::chmod(inside.c_str(), 0755) == 0);
  CHECK(KernelCache::open(inside));
  REQUIRE(::chmod(open_folder.c_str(), 0777) == 0);  // above it: they could replace it as a whole
  CHECK_FALSE(KernelCache::open(inside));
  REQUIRE(::chmod(open_folder.c_str(), 01777) == 0);
  CHECK(KernelCache::open(inside));
  if (::geteuid() == 0) {
    REQUIRE(::chown(inside.c_str(), 12345, 12345) == 0);
    const auto refused = KernelCache::open(inside);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().to_string().find("12345") != std::string::npos);
  }
}
