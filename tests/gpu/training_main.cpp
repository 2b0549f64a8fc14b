// Tests training on a GPU. Exit code 77 where there is no GPU to run on: skipped, never passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/gpu/without_gpu.h"

int main(int count, char** arguments) {
  if (const auto code = shardrun::gpu_test::exit_code_without_gpu()) return *code;
  return doctest::Context(count, arguments).run();
}
