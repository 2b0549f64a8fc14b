// ModelSpec: [model] of a job spec, and how it is read.
//
// Thread rule: plain values; read_model() is pure but for `reading`.
// Source of the scalings: Hugging Face's modeling_rope_utils, "linear" (Chen et al. 2023) and "llama3" (Llama 3.1).
#pragma once

#include <string>

namespace shardrun::spec {

struct SpecReading;
struct TomlValue;

enum class RopeScaling { kNone, kLinear, kLlama3 };

// How a model stretches its rotary positions beyond the length that it was first made for.
struct RotaryScaling {
  RopeScaling kind = RopeScaling::kNone;
  double factor = 1.0;  // frequencies are divided by it: all of them, or of llama3 the low ones
  // Of llama3: waves longer than original_length / low_factor are low, those shorter than original_length / high_factor
  // stay as they are, and the frequencies between go over smoothly.
  double low_factor = 1.0, high_factor = 4.0;
  int original_length = 8192;
};

// Experts in the place of each feed-forward: every token is computed by the few that its router chooses.
struct ExpertSpec {
  int count = 0;           // of a layer; 0: none
  int per_token = 2;       // how many compute a token
  bool normalize = true;   // whether the weights of those add up to 1
  double balance = 0.001;  // coefficient of the loss that spreads tokens over experts

  bool wanted() const { return count > 0; }
};

struct ModelSpec {  // [model]: a preset, or every size; sizes beside a preset override it
  std::string preset;
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  // Of a BERT the rows of its table, 512 where nobody says; of a Llama the length that it is made for, 0 where nobody says.
  int max_positions = 0;
  bool tied_embeddings = false;  // for a Llama: one table for the embedding and the classifier
  std::string init = "random";   // or a .safetensors file, or a folder of them with their index
  bool next_sentence = true;  // whether a BERT learns which sentences follow each other; else it is a RoBERTa
  // For a Llama, what families of it have:
  int head_size = 0;        // elements of a head; 0: hidden / heads
  bool qkv_bias = false;    // whether queries, keys and values have biases, as Qwen 2's
  bool head_norms = false;  // whether each query head and key head is normed, as Qwen 3's
  int window = 0;           // tokens that a token sees, itself among them, as Mistral's; 0: all
  RotaryScaling rope;
  ExpertSpec experts;  // with them, ffn is the size of one expert

  // Returns the elements of a head, from the sizes where nobody says; 0 where they do not.
  int head_elements() const { return head_size > 0 || heads < 1 ? head_size : hidden / heads; }
};

// Reads [model] of a job with that trainer, and refuses sizes that make no model.
void read_model(const TomlValue& document, SpecReading& reading, const std::string& trainer,
                ModelSpec& model);

// Returns the name of a scaling in a job spec and in config.json; kNone is "none" and "default" there.
const char* name_of(RopeScaling scaling);

}  // namespace shardrun::spec
