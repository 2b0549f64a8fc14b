// Runs libFuzzer over chat templates: the input is one, and what a user says in it.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/trainer/data/own_template.h"

using namespace shardrun::data;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto own = OwnTemplate::parse(text, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!own) return 0;
  const std::vector<Message> talk{
      {"system", "be brief"}, {"user", std::string(text.substr(0, 64))}, {"assistant", "b"}};
  (void)own->render(talk, true);
  (void)own->render_to_learn(talk);
  return 0;
}
