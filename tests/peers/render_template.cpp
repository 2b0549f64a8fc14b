// Renders conversations by a checkpoint's chat template: our side of tests/peers/chat_templates.py.
//
// stdin: a JSON object a line, {"template", "bos_token", "eos_token", "messages": [{"role", "content"}], "prompts": true|false}.
// stdout: for each line {"text": what it says} or {"error": why not}.
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/trainer/data/own_template.h"

using namespace shardrun;

namespace {

nlohmann::json answer(const nlohmann::json& asked) {
  const auto own = data::OwnTemplate::parse(asked["template"].get<std::string>(),
                                            {{"bos_token", asked["bos_token"].get<std::string>()},
                                             {"eos_token", asked["eos_token"].get<std::string>()}});
  if (!own) return {{"error", own.error().to_string()}};
  std::vector<data::Message> messages;
  for (const auto& message : asked["messages"])
    messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  const auto rendered = own->render(messages, asked["prompts"].get<bool>());
  if (!rendered) return {{"error", rendered.error().to_string()}};
  return {{"text", rendered->text}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << base::json_text(answer(base::parse_json(line))) << "\n";
  return 0;
}
