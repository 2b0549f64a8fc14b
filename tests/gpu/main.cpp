// Tests the ops on a GPU against the reference. Exit code 77 where there is no GPU to run on: skipped, never passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/gpu/harness.h"
#include "tests/gpu/without_gpu.h"

int main(int count, char** arguments) {
  if (const auto code = shardrun::gpu_test::exit_code_without_gpu()) return *code;
  std::printf("on %s, %d multiprocessors\n", shardrun::gpu_test::device().name().c_str(),
              shardrun::gpu_test::device().multiprocessors());
  const int result = doctest::Context(count, arguments).run();
  const auto& plain = shardrun::gpu_test::device().plain_products();
  for (const std::string& product : plain) std::printf("no kernel for %s\n", product.c_str());
  std::printf("%zu shapes of matrix products had no kernel in cublasLt\n", plain.size());
  return result;
}
