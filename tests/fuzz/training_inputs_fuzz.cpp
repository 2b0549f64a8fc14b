// Runs libFuzzer over what a training job is given beside its spec: a checkpoint's config.json, tables of matrix products, a
// WordPiece vocabulary, documents of JSON lines, and the questions that its model is asked afterwards.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/json_fields.h"
#include "runtime/base/result.h"
#include "runtime/base/text.h"
#include "runtime/spec/pretrained_config.h"
#include "runtime/tools/question_line.h"
#include "runtime/trainer/data/documents.h"
#include "runtime/trainer/data/tokenizer.h"
#include "runtime/trainer/data/tokenizer_kinds.h"
#include "runtime/trainer/kernels/cuda/product_table.h"

using namespace shardrun;

namespace {

struct Folder {
  Folder() { SHARDRUN_CHECK(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name, std::string_view text) const {
    std::ofstream(path + "/" + name, std::ios::binary | std::ios::trunc) << text;
    return path + "/" + name;
  }
  std::string path = "/dev/shm/training_inputs_fuzz.XXXXXX";
};

void check_products(const std::string& text) {
  kernels::cuda::ProductTable table("12.0 on NVIDIA H100"), again("12.0 on NVIDIA H100");
  for (const std::string& body : {text, "shardrun products 1\nmade for 12.0 on NVIDIA H100\n" + text}) {
    if (!table.load(body)) continue;
    SHARDRUN_CHECK(again.load(table.text()).has_value() && again.text() == table.text());
  }
}

void check_documents(const std::string& path, size_t size) {
  auto reader = data::DocumentReader::open(path, "data.files[0]", data::Reading{});
  if (!reader) return;
  const int64_t count = reader->count();
  int64_t read = 0;
  while (true) {
    const auto document = reader->next();
    if (!document) return;  // what is not a document is named by its line
    if (!*document) break;
    ++read;
    SHARDRUN_CHECK((*document)->text.size() <= size);
  }
  SHARDRUN_CHECK(read == count);
}

// What is accepted can be judged, and is the same when it is written and read again.
void check_questions(std::string_view text) {
  while (!text.empty()) {
    const auto line = tools::parse_question_line(base::take_line(text));
    if (!line) continue;
    SHARDRUN_CHECK(line->answer.has_value() != line->choices.has_value());
    SHARDRUN_CHECK(!line->choices ||
                   (*line->label >= 0 && std::cmp_less(*line->label, line->choices->size())));
    const auto again = tools::parse_question_line(base::json_of(*line));
    SHARDRUN_CHECK(again && again->prompt == line->prompt && again->answer == line->answer &&
                   again->choices == line->choices && again->label == line->label);
  }
}

void check_vocabulary(const std::string& path, const std::string& text) {
  const auto tokenizer = data::open_wordpiece_tokenizer(path);
  if (!tokenizer) return;
  std::vector<data::Token> tokens;
  (void)(*tokenizer)->encode(text, tokens);
  for (const data::Token& token : tokens)
    SHARDRUN_CHECK(token.id >= 0 && token.id < static_cast<int32_t>((*tokenizer)->facts().vocabulary));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder kFolder;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const char* trainer : {"llama", "bert"}) {
    if (const auto read = spec::read_pretrained_config(text, "config.json", trainer))
      (void)spec::model_of(*read, "config.json", trainer);
  }
  check_products(text);
  check_questions(text);
  check_documents(kFolder.file("documents.jsonl", text), size);
  check_vocabulary(kFolder.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + text), text);
  check_vocabulary(kFolder.file("vocab.txt", text), text);
  return 0;
}
