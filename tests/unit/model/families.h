// What transformers computes for a tiny model of each family: peers/families.txt, written by tests/peers/families.py, which says
// how weights and batches are made. Each family's config.json goes the way that a job's does.
//
// Thread rule: pure functions; checks are doctest's.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/plan/model/llama.h"
#include "runtime/spec/pretrained_config.h"

namespace shardrun::tests {

inline constexpr const char* kFamilies[] = {"llama-3.1", "llama-3.2", "llama-linear", "tinyllama",
                                            "smollm2",   "mistral",   "qwen-2.5",     "qwen-3",
                                            "mixtral",   "qwen-3-moe"};

struct Peer {
  std::string config;
  spec::LoraSpec lora;                         // of lora.txt
  std::vector<double> losses, logits, greedy;  // the latter two behind prompt()
  std::map<std::string, std::vector<double>>
      gradients;  // of each parameter: norm, product with random numbers
};

// Reads the rest of a line of lora.txt: rank, alpha, whether it is rsLoRA, matrices in their order.
inline spec::LoraSpec lora_of(std::istringstream& words) {
  spec::LoraSpec lora;
  words >> lora.rank >> lora.alpha >> lora.rslora;
  for (std::string name; words >> name;) {
    for (int matrix = 0; matrix < spec::kLoraMatrices; ++matrix) {
      const auto one = static_cast<spec::LoraMatrix>(matrix);
      if (name == spec::name_of(one)) lora.matrices.push_back(one);
    }
  }
  return lora;
}

// `source`: the folder of the sources.
inline std::map<std::string, Peer> peers(const std::string& source,
                                         const std::string& name_of_file = "families.txt") {
  std::ifstream file(source + "/tests/unit/model/peers/" + name_of_file);
  std::map<std::string, Peer> found;
  Peer* peer = nullptr;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind;
    if (kind == "family" || kind == "gradient") words >> name;
    if (kind == "family") peer = &found[name];
    if (peer == nullptr) continue;
    if (kind == "config") std::getline(words, peer->config);
    if (kind == "lora") peer->lora = lora_of(words);
    if (kind == "family" || kind == "config" || kind == "lora") continue;
    std::vector<double>& numbers = kind == "losses"   ? peer->losses
                                   : kind == "logits" ? peer->logits
                                   : kind == "greedy" ? peer->greedy
                                                      : peer->gradients[name];
    for (double number = 0.0; words >> number;) numbers.push_back(number);
  }
  return found;
}

// As weight() of families.py.
inline float weight(const plan::ParameterInfo& tensor, uint64_t element) {
  const double value = base::random_normal(base::random_bits(1, base::hash_name(tensor.name)), element);
  if (tensor.name.ends_with("norm.weight") || tensor.name.ends_with("Norm.weight"))
    return static_cast<float>(1.0 + 0.1 * value);
  return static_cast<float>((tensor.name.ends_with("bias") ? 0.1 : 0.08) * value);
}

inline spec::ModelSpec model_of(const Peer& peer, const std::string& trainer) {
  const auto read = spec::read_pretrained_config(peer.config, "config.json", trainer);
  REQUIRE_MESSAGE(read, read.error().to_string());
  const auto spec = spec::model_of(*read, "config.json", trainer);
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  return *spec;
}

inline plan::LlamaConfig config_of(const Peer& peer) {
  plan::LlamaConfig config = plan::LlamaConfig::of(model_of(peer, "llama"));
  config.lora = peer.lora;
  return config;
}

}  // namespace shardrun::tests
