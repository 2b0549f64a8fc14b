#include "runtime/tools/generate_tool.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/tools/evaluation.h"
#include "runtime/tools/language_model.h"
#include "runtime/tools/option_words.h"
#include "runtime/tools/stop_requests.h"
#include "runtime/trainer/data/document_encoder.h"
#include "runtime/trainer/generate/decoder.h"
#include "runtime/trainer/generate/sampling.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;
using base::Result;
using Clock = std::chrono::steady_clock;

struct Options {
  ModelPlace place;
  std::string tokenizer, prompt, system, chat_template, evaluated;
  std::vector<int32_t> prompt_tokens;
  data::Encoding encoding;
  generate::Sampling sampling;
  int64_t max_tokens = 256;
  int threads = 0;
  bool json = false;
};

Result<void> read_tokens(std::string_view text, std::vector<int32_t>& into) {
  while (!text.empty()) {
    RETURN_IF_ERROR(read_number(base::take_until(text, ','), "prompt-tokens", into.emplace_back()));
  }
  return {};
}

Result<void> read_option(std::string_view name, std::string_view value, Options& options) {
  if (name == "checkpoint") {
    options.place.checkpoint = value;
  } else if (name == "base") {
    options.place.base = value;
  } else if (name == "folder") {
    options.place.folder = value;
  } else if (name == "dtype") {
    options.place.dtype = value;
  } else if (name == "tokenizer") {
    options.tokenizer = value;
  } else if (name == "prompt") {
    options.prompt = value;
  } else if (name == "evaluate") {
    options.evaluated = value;
  } else if (name == "system") {
    options.system = value;
  } else if (name == "prompt-tokens") {
    return read_tokens(value, options.prompt_tokens);
  } else if (name == "template") {
    options.chat_template = value;
  } else if (name == "max-tokens") {
    return read_number(value, name, options.max_tokens);
  } else if (name == "temperature") {
    return read_number(value, name, options.sampling.temperature);
  } else if (name == "top-p") {
    return read_number(value, name, options.sampling.top_p);
  } else if (name == "seed") {
    return read_number(value, name, options.sampling.seed);
  } else if (name == "threads") {
    return read_number(value, name, options.threads);
  } else {
    return Error(Code::kInvalid, fmt::format("there is no option --{}", name));
  }
  return {};
}

Result<Options> read_options(std::span<char* const> arguments) {
  Options options;
  RETURN_IF_ERROR(read_option_words(
      arguments, "generate", {{"--json", options.json}, {"--marks-in-text", options.encoding.marks_in_text}},
      [&](auto name, auto value) { return read_option(name, value, options); }));
  const int asked = (options.prompt.empty() ? 0 : 1) + (options.prompt_tokens.empty() ? 0 : 1) +
                    (options.evaluated.empty() ? 0 : 1);
  if (asked != 1) return Error(Code::kInvalid, "one of --prompt, --prompt-tokens and --evaluate is needed");
  constexpr int64_t kMostTokens = int64_t{1} << 40;
  if (options.max_tokens < 1) return Error(Code::kInvalid, "--max-tokens: write 1 or more");
  if (options.max_tokens > kMostTokens)
    return Error(Code::kInvalid, fmt::format("--max-tokens: write at most {}", kMostTokens));
  if (!options.chat_template.empty())
    RETURN_IF_ERROR(data::choose_template(options.chat_template, options.tokenizer, options.encoding));
  if (!options.system.empty() && options.chat_template.empty())
    return Error(Code::kInvalid, fmt::format("--system needs --template {}", data::kChatTemplates));
  return options;
}

// Writes text as it comes, whole characters at a time; on a terminal nothing of it steers that.
class Output {
 public:
  explicit Output(bool writes) : writes_(writes), terminal_(::isatty(STDOUT_FILENO) == 1) {}

  void add(const std::string& bytes) {
    text_ += bytes;
    // Up to three bytes may be the beginning of a character whose rest comes with the next token.
    size_t end = text_.size();
    for (size_t back = 1; back <= 3 && back <= text_.size() - written_; ++back) {
      const auto byte = static_cast<unsigned char>(text_[text_.size() - back]);
      if (byte < 0x80) break;
      if (byte < 0xC0) continue;
      const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
      if (length > back) end = text_.size() - back;
      break;
    }
    write(end);
  }
  const std::string& finish() {
    write(text_.size());
    if (writes_ && !text_.empty()) fmt::print("\n");
    return text_;
  }

 private:
  void write(size_t end) {
    if (!writes_ || end <= written_) return;
    const std::string piece = text_.substr(written_, end - written_);
    fmt::print("{}", terminal_ ? base::visible_lines(piece) : piece);
    std::fflush(stdout);
    written_ = end;
  }

  bool writes_, terminal_;
  std::string text_;
  size_t written_ = 0;
};

// What --json prints.
struct Generated {
  std::string dtype;
  int threads = 0;
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;
  std::string text, ended;
  double prompt_seconds = 0.0, seconds = 0.0;

  // Tokens a second behind the prompt, which gives the first.
  double rate() const {
    return seconds > 0.0 && tokens.size() > 1 ? static_cast<double>(tokens.size() - 1) / seconds : 0.0;
  }
};
void fields(auto& visit, const Generated& generated) {
  visit("dtype", generated.dtype);
  visit("threads", generated.threads);
  visit("prompt_tokens", generated.prompt_tokens);
  visit("tokens", generated.tokens);
  visit("text", generated.text);
  visit("ended", generated.ended);
  visit("prompt_seconds", generated.prompt_seconds);
  visit("seconds", generated.seconds);
  visit("tokens_per_second", generated.rate());
}

Result<data::Question> ask(const Options& options, const data::Tokenizer* tokenizer) {
  if (!options.prompt_tokens.empty()) {
    data::Question question{options.prompt_tokens, {}};
    if (const int32_t end = tokenizer != nullptr ? tokenizer->facts().special.end : -1; end >= 0)
      question.ends.push_back(end);
    return question;
  }
  return data::encode_question(
      *tokenizer, data::prompt_document(options.prompt, options.system, options.encoding), options.encoding);
}

Result<void> check_prompt(const data::Question& question, const LanguageModel& model) {
  const int vocabulary = model.config.vocab, positions = model.config.max_positions;
  for (const int32_t token : question.ids) {
    if (token < 0 || token >= vocabulary)
      return Error(
          Code::kInvalid,
          fmt::format("the prompt has token {}, and the model knows {} tokens; name its own --tokenizer",
                      token, vocabulary));
  }
  if (question.ids.empty()) return Error(Code::kInvalid, "the prompt has no token");
  if (positions > 0 && static_cast<int64_t>(question.ids.size()) >= positions)
    return Error(Code::kInvalid,
                 fmt::format("the prompt has {} tokens, and the model is made for {}; shorten it",
                             question.ids.size(), positions));
  return {};
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Result<Generated> run(const Options& options, StopRequests& stop) {
  if (options.threads > 0) ::omp_set_num_threads(options.threads);
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    ASSIGN_OR_RETURN(tokenizer, data::open_tokenizer(options.tokenizer));
  } else if (options.prompt_tokens.empty()) {
    return Error(Code::kInvalid, "which tokenizer the model has is not known; name its --tokenizer");
  }
  ASSIGN_OR_RETURN(const auto question, ask(options, tokenizer.get()));
  ASSIGN_OR_RETURN(LanguageModel model, load_language_model(options.place));
  RETURN_IF_ERROR(check_prompt(question, model));
  const auto count = static_cast<int64_t>(question.ids.size());
  int64_t capacity = count + options.max_tokens;
  if (model.config.max_positions > 0) capacity = std::min<int64_t>(capacity, model.config.max_positions);
  RETURN_IF_ERROR(check_capacity(model, capacity));
  std::vector<int32_t> ends = model.ends;
  ends.insert(ends.end(), question.ends.begin(), question.ends.end());
  Generated generated{
      .dtype = name_of(model.weights.dtype), .threads = ::omp_get_max_threads(), .prompt_tokens = count};
  ASSIGN_OR_RETURN(const auto decoder,
                   generate::Decoder::create(model.config, std::move(model.weights), capacity));

  Output output(!options.json);
  auto begin = Clock::now();
  std::span<const float> logits = decoder->feed(question.ids);
  generated.prompt_seconds = seconds_since(begin);
  begin = Clock::now();
  generated.ended = options.max_tokens > capacity - count ? "max_positions" : "max_tokens";
  for (int64_t number = 0; number < capacity - count; ++number) {
    if (number > 0) logits = decoder->feed(std::span(&generated.tokens.back(), 1));
    RETURN_IF_ERROR(generate::check_logits(logits));
    const int32_t token = generate::next_token(logits, options.sampling, number);
    const bool ends_here = std::find(ends.begin(), ends.end(), token) != ends.end();
    generated.tokens.push_back(token);
    if (tokenizer && !ends_here) output.add(tokenizer->bytes_of(token));
    if (ends_here || stop.came()) {
      generated.ended = ends_here ? "end_token" : "stopped";
      break;
    }
  }
  generated.seconds = seconds_since(begin);
  generated.text = output.finish();
  if (!tokenizer && !options.json) fmt::print("{}\n", fmt::join(generated.tokens, ","));
  return generated;
}

Result<Evaluation> run_evaluation(const Options& options, StopRequests& stop) {
  if (options.threads > 0) ::omp_set_num_threads(options.threads);
  if (options.tokenizer.empty())
    return Error(Code::kInvalid, "which tokenizer the model has is not known; name its --tokenizer");
  ASSIGN_OR_RETURN(const auto tokenizer, data::open_tokenizer(options.tokenizer));
  ASSIGN_OR_RETURN(LanguageModel model, load_language_model(options.place));
  return evaluate(std::move(model), *tokenizer,
                  {options.evaluated, options.system, options.encoding, options.max_tokens},
                  [&] { return stop.came(); });
}

}  // namespace

int run_generate_tool(std::span<char* const> arguments) {
  const auto options = read_options(arguments);
  if (!options) return fail(options.error());
  StopRequests stop;
  if (!options->evaluated.empty()) {
    const auto evaluation = run_evaluation(*options, stop);
    if (!evaluation) return fail(evaluation.error());
    fmt::print("{}", options->json ? to_json(*evaluation) : to_text(*evaluation));
    return contract::kExitDone;
  }
  const auto generated = run(*options, stop);
  if (!generated) return fail(generated.error());
  if (options->json) fmt::print("{}", base::json_of(*generated));
  return contract::kExitDone;
}

}  // namespace shardrun::tools
