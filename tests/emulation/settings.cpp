#include "tests/emulation/settings.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace shardrun::emulation {
namespace {

void apply(Settings& to, const std::string& part) {
  const size_t equals = part.find('=');
  const std::string name = part.substr(0, equals),
                    value = equals < part.size() ? part.substr(equals + 1) : "";
  if (name == "seed") {
    to.seed = std::strtoull(value.c_str(), nullptr, 10);
  } else if (part == "products=none") {
    to.has_products = false;
  } else if (part == "memory=open") {
    to.closes_memory = false;
  } else if (name == "memory_mib") {
    to.memory_bytes = size_t{std::strtoull(value.c_str(), nullptr, 10)} << 20;
  } else if (!part.empty()) {
    std::fprintf(stderr, "EMULATED_GPU: \"%s\" is unknown; see tests/emulation/settings.h\n", part.c_str());
    std::exit(2);
  }
}

Settings from_environment() {
  Settings read;
  const char* const text = std::getenv("EMULATED_GPU");
  std::string rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    apply(read, rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return read;
}

}  // namespace

Settings& settings() {
  static Settings one = from_environment();
  return one;
}

Choice choice() {
  const uint64_t seed = settings().seed;
  return seed == 0 ? Choice::kFirst : seed == 1 ? Choice::kLast : Choice::kRandom;
}

std::mt19937_64& chance() {
  static std::mt19937_64 generator(settings().seed);
  return generator;
}

void set_seed(uint64_t seed) {
  settings().seed = seed;
  chance().seed(seed);
}

}  // namespace shardrun::emulation
