#include "runtime/tools/evaluation.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"
#include "runtime/base/visible.h"
#include "runtime/tools/question_line.h"
#include "runtime/trainer/generate/decoder.h"
#include "runtime/trainer/generate/sampling.h"

namespace shardrun::tools {

// Found by base/json_fields.h beside the structs.
void fields(auto& visit, const Judged& judged) {
  visit("line", judged.line);
  visit("right", judged.right);
  visit.where_known("said", judged.said);
  visit.where_known("log_likelihoods", judged.log_likelihoods);
  visit.where_known("chosen", judged.chosen);
  visit.where_known("chosen_by_length", judged.chosen_by_length);
}

void fields(auto& visit, const Evaluation& evaluation) {
  visit("file", evaluation.file);
  visit("answers", evaluation.answers);
  visit("exact", evaluation.exact);
  visit("choices", evaluation.choices);
  visit("right", evaluation.right);
  visit("right_by_length", evaluation.right_by_length);
  visit("questions", evaluation.questions);
}

namespace {

using base::Code;
using base::Error;
using base::kWhite;
using base::trimmed;

constexpr uint64_t kLargestFile = uint64_t{1} << 30;

// One question in tokens.
struct Task {
  int64_t line = 0;
  std::vector<int32_t> prompt, ends;
  std::string answer;  // of a question without choices
  std::vector<std::vector<int32_t>> choices;
  std::vector<int64_t> characters;  // of each
  int label = 0;
};

int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

// The positions that a task takes: the last token of a choice or an answer is looked at, and not gone on from.
int64_t positions_of(const Task& task, int64_t max_tokens) {
  size_t longest = 0;
  for (const auto& choice : task.choices) longest = std::max(longest, choice.size());
  const int64_t more = task.choices.empty() ? max_tokens : static_cast<int64_t>(longest);
  return static_cast<int64_t>(task.prompt.size()) + more - 1;
}

class TaskReader {
 public:
  TaskReader(const LanguageModel& model, const data::Tokenizer& tokenizer, const EvaluationOptions& options)
      : model_(model), tokenizer_(tokenizer), options_(options) {}

  Result<std::vector<Task>> read() {
    ASSIGN_OR_RETURN(const auto text, base::read_file(options_.file, kLargestFile));
    std::vector<Task> tasks;
    int64_t number = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = base::take_line(rest);
      ++number;
      if (trimmed(line).empty()) continue;
      auto task = task_of(line);
      if (!task)
        return std::move(task).error().context(fmt::format("{}:{}", base::visible(options_.file), number));
      task->line = number;
      tasks.push_back(std::move(*task));
    }
    if (!tasks.empty()) return tasks;
    return Error(Code::kInvalid,
                 fmt::format("{}: has no question; write one a line", base::visible(options_.file)));
  }

 private:
  Result<data::Question> question_of(const std::string& prompt) const {
    return data::encode_question(
        tokenizer_, data::prompt_document(prompt, options_.system, options_.encoding), options_.encoding);
  }

  Result<Task> task_of(std::string_view text) const {
    ASSIGN_OR_RETURN(auto line, parse_question_line(text));
    // A blank before an answer belongs to its first word, as tokenizers have it.
    std::string blank;
    if (!options_.encoding.talks() && line.choices) {
      const size_t end = line.prompt.find_last_not_of(kWhite) + 1;
      blank = line.prompt.substr(end);
      line.prompt.resize(end);
    }
    Task task;
    ASSIGN_OR_RETURN(auto question, question_of(line.prompt));
    task.prompt = std::move(question.ids);
    task.ends = std::move(question.ends);
    task.answer = line.answer.value_or("");
    task.label = line.label.value_or(0);
    for (const std::string& choice : line.choices.value_or(std::vector<std::string>())) {
      ASSIGN_OR_RETURN(auto tokens, continuation(line.prompt, blank + choice, task.prompt.size()));
      task.choices.push_back(std::move(tokens));
      task.characters.push_back(characters_of(choice));
    }
    RETURN_IF_ERROR(check(task));
    return task;
  }

  // The tokens of a choice: those that are more than the prompt's.
  Result<std::vector<int32_t>> continuation(const std::string& prompt, const std::string& choice,
                                            size_t before) const {
    std::vector<int32_t> ids;
    if (options_.encoding.talks()) {
      std::vector<data::Token> tokens;
      RETURN_IF_ERROR(tokenizer_.encode(choice, tokens));
      for (const data::Token& token : tokens) ids.push_back(token.id);
    } else {
      ASSIGN_OR_RETURN(const auto whole, question_of(prompt + choice));
      if (whole.ids.size() > before)
        ids.assign(whole.ids.begin() + static_cast<std::ptrdiff_t>(before), whole.ids.end());
    }
    if (ids.empty()) return Error(Code::kInvalid, "a choice adds no token to its prompt; write other words");
    return ids;
  }

  Result<void> check(const Task& task) const {
    const auto fits = [&](int32_t token) { return token >= 0 && token < model_.config.vocab; };
    bool known = std::all_of(task.prompt.begin(), task.prompt.end(), fits);
    for (const auto& choice : task.choices) known = known && std::all_of(choice.begin(), choice.end(), fits);
    if (!known)
      return Error(Code::kInvalid,
                   fmt::format("has a token beyond the {} that the model knows; name its own --tokenizer",
                               model_.config.vocab));
    if (task.prompt.empty()) return Error(Code::kInvalid, "the prompt has no token; write something");
    const int64_t all = positions_of(task, options_.max_tokens), most = model_.config.max_positions;
    if (most > 0 && all > most)
      return Error(
          Code::kInvalid,
          fmt::format("needs {} positions, and the model is made for {}; shorten it, or lower --max-tokens",
                      all, most));
    return {};
  }

  const LanguageModel& model_;
  const data::Tokenizer& tokenizer_;
  const EvaluationOptions& options_;
};

class Judge {
 public:
  Judge(generate::Decoder& decoder, const data::Tokenizer& tokenizer, const EvaluationOptions& options,
        const std::function<bool()>& stops)
      : decoder_(decoder), tokenizer_(tokenizer), options_(options), stops_(stops) {}

  // Returns nothing when it was stopped. kCorrupt as generate::check_logits.
  Result<std::optional<Judged>> judge(const Task& task) {
    decoder_.go_back(0);
    const auto logits = decoder_.feed(task.prompt);
    RETURN_IF_ERROR(generate::check_logits(logits));
    const std::vector<float> first(logits.begin(), logits.end());
    return task.choices.empty() ? judge_answer(task, first) : judge_choices(task, first);
  }

 private:
  std::optional<Judged> judge_answer(const Task& task, std::span<const float> logits) {
    const bool one_line =
        !options_.encoding.talks() && trimmed(task.answer).find('\n') == std::string_view::npos;
    std::string said;
    for (int64_t number = 0; number < options_.max_tokens; ++number) {
      if (stops_()) return std::nullopt;
      const int32_t token = generate::next_token(logits, {}, number);
      if (std::find(task.ends.begin(), task.ends.end(), token) != task.ends.end()) break;
      said += tokenizer_.bytes_of(token);
      const size_t begin = std::min(said.find_first_not_of(kWhite), said.size());
      if (const size_t end = said.find('\n', begin); one_line && end != std::string::npos) {
        said.resize(end);
        break;
      }
      if (number + 1 < options_.max_tokens) logits = decoder_.feed(std::span(&token, 1));
    }
    Judged judged{.line = task.line, .said = std::string(trimmed(said))};
    judged.right = *judged.said == trimmed(task.answer);
    return judged;
  }

  std::optional<Judged> judge_choices(const Task& task, std::span<const float> first) {
    std::vector<double> sums, means;
    for (size_t i = 0; i < task.choices.size(); ++i) {
      double sum = 0.0;
      std::span<const float> logits = first;
      for (size_t at = 0; at < task.choices[i].size(); ++at) {
        if (stops_()) return std::nullopt;
        sum += generate::log_probability(logits, task.choices[i][at]);
        if (at + 1 < task.choices[i].size())
          logits = decoder_.feed(std::span(task.choices[i]).subspan(at, 1));
      }
      decoder_.go_back(static_cast<int64_t>(task.prompt.size()));
      sums.push_back(sum);
      means.push_back(sum / static_cast<double>(std::max<int64_t>(1, task.characters[i])));
    }
    const auto best = [](const std::vector<double>& values) {
      return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
    };
    Judged judged{.line = task.line, .chosen = best(sums), .chosen_by_length = best(means)};
    judged.right = *judged.chosen == task.label;
    judged.log_likelihoods = std::move(sums);
    return judged;
  }

  generate::Decoder& decoder_;
  const data::Tokenizer& tokenizer_;
  const EvaluationOptions& options_;
  const std::function<bool()>& stops_;
};

std::string row(const char* name, int64_t right, int64_t of) {
  return fmt::format("{:<26} {:>7} of {:<7} {:5.1f} %\n", name, right, of,
                     100.0 * static_cast<double>(right) / static_cast<double>(of));
}

}  // namespace

Result<Evaluation> evaluate(LanguageModel model, const data::Tokenizer& tokenizer,
                            const EvaluationOptions& options, const std::function<bool()>& stops) {
  ASSIGN_OR_RETURN(auto tasks, TaskReader(model, tokenizer, options).read());
  int64_t capacity = 0;
  for (Task& task : tasks) {
    capacity = std::max(capacity, positions_of(task, options.max_tokens));
    task.ends.insert(task.ends.end(), model.ends.begin(), model.ends.end());
  }
  RETURN_IF_ERROR(check_capacity(model, capacity));
  ASSIGN_OR_RETURN(const auto decoder,
                   generate::Decoder::create(model.config, std::move(model.weights), capacity));
  Judge judge(*decoder, tokenizer, options, stops);
  Evaluation evaluation{.file = options.file};
  for (const Task& task : tasks) {
    ASSIGN_OR_RETURN(auto judged, judge.judge(task));
    if (!judged) break;
    if (task.choices.empty()) {
      ++evaluation.answers;
      evaluation.exact += judged->right ? 1 : 0;
    } else {
      ++evaluation.choices;
      evaluation.right += judged->right ? 1 : 0;
      evaluation.right_by_length += judged->chosen_by_length == task.label ? 1 : 0;
    }
    evaluation.questions.push_back(std::move(*judged));
  }
  return evaluation;
}

std::string to_json(const Evaluation& evaluation) {
  return base::json_of(evaluation);
}

std::string to_text(const Evaluation& evaluation) {
  std::string text;
  if (evaluation.answers > 0) text += row("exact answers", evaluation.exact, evaluation.answers);
  if (evaluation.choices > 0) {
    text += row("likeliest choice", evaluation.right, evaluation.choices);
    text += row("likeliest by its length", evaluation.right_by_length, evaluation.choices);
  }
  return text;
}

}  // namespace shardrun::tools
