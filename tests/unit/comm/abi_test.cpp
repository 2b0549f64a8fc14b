#include <doctest/doctest.h>

extern "C" unsigned char abi_first_byte_of_magic(void);

TEST_CASE("plugin abi: the header spells shardrun in memory, seen from C11") {
  CHECK(abi_first_byte_of_magic() == 's');
}
